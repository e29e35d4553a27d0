"""The model's processor on another device, beside the CPU: what it makes, seconds and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from mmcalib.child.processor import Processor, load
from mmcalib.child.service import refusal_of
from mmcalib.child.tensors import timed
from mmcalib.domain.model import Processed
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import CompareDevices, DevicesCompared
from mmcalib.releases import processors

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel


def compare(model: OpenedModel, request: CompareDevices) -> DevicesCompared:
    """The subject through both processors; what either refuses is answered as a reason."""
    modality, device = request.subject.modality, torch.device(request.device)
    made: list[Processed] = []
    try:
        media, _ = load(request.subject, model.under(request.setting))
        for where in (torch.device("cpu"), device):
            under = model.on(request.setting, str(where)) if made else model.under(request.setting)
            if request.warm:
                processors.process_item(under.processor, modality, media)
            made.append(_process(under, modality, media, where))
    except Exception as error:  # noqa: BLE001 - the refusal is the measurement
        reason = refusal_of(error)
    else:
        return DevicesCompared(made[0], made[1])
    # Out here nothing holds the tensors of the failed run any more.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return DevicesCompared(made[0] if made else None, None, reason)


def _process(under: Processor, modality: Modality, media: Any, device: torch.device) -> Processed:
    def run() -> Any:
        return processors.process_item(under.processor, modality, media)

    output, seconds, peak = timed(run, device)
    placeholders = output["mm_placeholders"][modality]
    return Processed(
        tokens=sum(p.length for p in placeholders),
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensors=tuple(
            said
            for item in output["mm_kwargs"][modality]
            for name, element in sorted(item.items())
            for said in _tensors(name, getattr(element, "data", element))
        ),
        seconds=seconds,
        peak_bytes=peak,
    )


def _tensors(name: str, data: Any) -> Iterator[str]:
    """Name, type and shape of every tensor; of another value its type."""
    if isinstance(data, list | tuple):
        for number, one in enumerate(data):
            yield from _tensors(f"{name}.{number}", one)
    elif isinstance(data, torch.Tensor):
        yield f"{name} {str(data.dtype).removeprefix('torch.')} {'×'.join(map(str, data.shape))}"
    else:
        yield f"{name} {type(data).__name__}"
