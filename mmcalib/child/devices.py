"""The model's processor on another device, beside the CPU: what it makes, seconds and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmcalib.child.exception_words import refusal_of
from mmcalib.child.media import load
from mmcalib.child.peak import timed
from mmcalib.child.processor import Processor
from mmcalib.child.tensor_specs import fields, form, largest_difference
from mmcalib.domain.processed import Processed
from mmcalib.domain.setting import DEFAULT
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import CompareDevices, DevicesCompared, DeviceTried, TryDevice
from mmcalib.releases import processors

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel

# torch's device of shapes without values: it is everywhere, and takes no memory.
_NOWHERE = "meta"
_FRAMES, _SIDE_PX, _SAMPLES, _RATE_HZ = 8, 256, 32_000, 16_000


def try_device(model: OpenedModel, request: TryDevice) -> DeviceTried:
    """Watch where a small blank of each modality is computed when it is asked for elsewhere."""
    unfit = {m: why for m in request.modalities if (why := _unfit(model, m))}
    return DeviceTried(unfit, processors.processor_device_option(), processors.processor_threads())


class _Watch(TorchDispatchMode):  # type: ignore[misc] # torch is not followed
    """Whether any operation's result lay on the device while this was open."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen = self.seen or any(
            isinstance(leaf, torch.Tensor) and leaf.device.type == self._device_type
            for leaf in tree_leaves(result)
        )
        return result


def _unfit(model: OpenedModel, modality: Modality) -> str:
    """Why nothing of the modality is computed elsewhere; empty where something is."""
    watch, why = _Watch(_NOWHERE), "it computes on the CPU, whatever device is named"
    try:
        under = model.on(DEFAULT, _NOWHERE)
        with watch:
            _apply(under, modality, _small(modality))
    except Exception as error:  # noqa: BLE001 - one that wants the values back fails here too
        why = refusal_of(error)
    return "" if watch.seen else why


def _small(modality: Modality) -> Any:
    """A blank as vLLM's loaders hand it over; made without them, which releases change."""
    match modality:
        case "image":
            return Image.new("RGB", (_SIDE_PX, _SIDE_PX))
        case "audio":
            return np.zeros(_SAMPLES, dtype=np.float32), _RATE_HZ
        case "video":
            facts = {"total_num_frames": _FRAMES, "fps": 8.0, "duration": _FRAMES / 8.0}
            places = {"frames_indices": list(range(_FRAMES)), "do_sample_frames": False}
            frames = np.zeros((_FRAMES, _SIDE_PX, _SIDE_PX, 3), dtype=np.uint8)
            return frames, {**facts, **places, "video_backend": "opencv"}


def compare(model: OpenedModel, request: CompareDevices) -> DevicesCompared:
    """The subject through both processors; what either refuses is answered as a reason."""
    subject, device = request.subject, torch.device(request.device)
    sides = (
        (model.under(request.setting), torch.device("cpu")),
        (model.on(request.setting, request.device), device),
    )
    found: list[Processed] = []
    items: list[dict[str, Any]] = []
    try:
        media, _ = load(subject, sides[0][0])
        for under, where in sides:
            if request.warm:
                _apply(under, subject.modality, media)
            one, item = _process(under, subject.modality, media, where)
            found.append(one)
            items.append(item)
    except Exception as error:  # noqa: BLE001 - the refusal is the measurement
        reason = refusal_of(error)
    else:
        return DevicesCompared(found[0], found[1], largest_difference=largest_difference(*items))
    # Out here nothing holds the tensors of the failed run any more.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return DevicesCompared(found[0] if found else None, None, reason)


def _apply(under: Processor, modality: Modality, media: Any) -> Any:
    ids = under.placeholder_ids(modality)
    return processors.apply_processor(under.processor, ids, {modality: [media]})


def _process(
    under: Processor, modality: Modality, media: Any, device: torch.device
) -> tuple[Processed, dict[str, Any]]:
    """What it made, and its tensors by name."""
    output, seconds, peak = timed(lambda: _apply(under, modality, media), device)
    placeholders = output["mm_placeholders"][modality]
    item = dict(fields(output["mm_kwargs"][modality]))
    found = Processed(
        tokens=sum(p.length for p in placeholders),
        embeds=sum(p.get_num_embeds() for p in placeholders),
        forms=tuple(form(name, data) for name, data in sorted(item.items())),
        seconds=seconds,
        peak_bytes=peak,
    )
    return found, item
