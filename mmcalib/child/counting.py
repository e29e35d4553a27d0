"""What vLLM's processing info says that an item costs, by its size alone, without its pixels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mmcalib.child.media import load
from mmcalib.child.model import OpenedModel
from mmcalib.child.processor import Processor
from mmcalib.domain.shapes import ImageShape, Modality
from mmcalib.engine.messages import Blank, Counted, CountEmbeds
from mmcalib.releases import processors


def count(model: OpenedModel, request: CountEmbeds) -> Counted:
    """Embeds and tiles of every blank in order; None where the model's code has no count of it."""
    under = model.under(request.setting)
    counters = {m: counter(m, under) for m in {blank.modality for blank in request.subjects}}
    sampled = [_sampled(blank, under) for blank in request.subjects]
    found = [
        _number(counters[blank.modality], size)
        for blank, size in zip(request.subjects, sampled, strict=True)
    ]
    tiles = processors.tiles_counter(under.processor)
    cut = [
        tiles(*size) if isinstance(blank.shape, ImageShape) else None
        for blank, size in zip(request.subjects, sampled, strict=True)
        if tiles
    ]
    return Counted(tuple(found), tuple(sampled), tuple(cut))


def _sampled(blank: Blank, under: Processor) -> tuple[int, ...]:
    """What the loader hands over; () where it refuses."""
    if isinstance(blank.shape, ImageShape):
        return blank.shape.width_px, blank.shape.height_px
    try:
        return load(blank, under)[1]
    except Exception:  # noqa: BLE001 - a refusal is for the measurement to tell
        return ()


def _number(counter: Callable[..., int] | None, sampled: tuple[int, ...]) -> int | None:
    if counter is None or not sampled:
        return None
    *frames, width, height = sampled
    extra = {"num_frames": frames[0]} if frames else {}
    try:
        return int(counter(image_width=width, image_height=height, **extra))
    except Exception:  # noqa: BLE001 - then the item is measured
        return None


def counter(modality: Modality, under: Processor) -> Callable[..., int] | None:
    """vLLM's counting method with everything but the size filled in, by the names of its
    parameters: models differ in which they want.
    """
    info = under.info
    method: Callable[..., Any] | None = getattr(info, f"get_num_{modality}_tokens", None)
    if method is None:
        return None
    part = getattr(info, f"get_{modality}_processor", None)
    known = {
        "processor": info.get_hf_processor,
        "image_processor": part or getattr(info, "get_image_processor", None),
        "mm_kwargs": dict,
    }
    wanted = inspect.signature(method).parameters
    try:
        filled = {name: make() for name, make in known.items() if make and name in wanted}
    except Exception:  # noqa: BLE001 - then the items are measured
        return None
    return lambda **size: method(**size, **filled)
