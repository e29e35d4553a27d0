"""What vLLM's own code says that an item costs, by its size alone, without its content."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from mmcalib.child.media import load
from mmcalib.child.model import OpenedModel
from mmcalib.child.processor import Processor
from mmcalib.child.sounds import count_sounds
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality
from mmcalib.engine.messages import Blank, Counted, CountEmbeds
from mmcalib.releases import processors


def count(model: OpenedModel, request: CountEmbeds) -> Counted:
    """Embeds and parts of every blank in order; None where the model's code has no count of it."""
    under = model.under(request.setting)
    shapes = [blank.shape for blank in request.subjects]
    sampled = tuple(_sampled(blank, under) for blank in request.subjects)
    heard = iter(count_sounds([shape for shape in shapes if isinstance(shape, AudioShape)], under))
    seen = _seen({shape.modality for shape in shapes} - {"audio"}, under)
    found = [
        next(heard) if isinstance(shape, AudioShape) else seen(shape.modality, size)
        for shape, size in zip(shapes, sampled, strict=True)
    ]
    return Counted(tuple(n for n, _ in found), sampled, tuple(parts for _, parts in found))


def _seen(
    modalities: Iterable[Modality], under: Processor
) -> Callable[[Modality, tuple[int, ...]], tuple[int | None, int | None]]:
    """Embeds of what is sampled of an image or a video, and the tiles of an image."""
    counters = {modality: counter(modality, under) for modality in modalities}
    tiles = processors.tiles_counter(under.processor)

    def found(modality: Modality, size: tuple[int, ...]) -> tuple[int | None, int | None]:
        cut = tiles(*size) if tiles and modality == "image" else None
        return _number(counters[modality], size), cut

    return found


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
        "mm_kwargs": lambda: processors.own_size(under.processor, modality),
    }
    wanted = inspect.signature(method).parameters
    try:
        filled = {name: make() for name, make in known.items() if make and name in wanted}
    except Exception:  # noqa: BLE001 - then the items are measured
        return None
    return lambda **size: method(**size, **filled)
