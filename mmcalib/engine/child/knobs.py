"""Which of the model's processor options change what its items cost, found by trying them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcalib.census.shapes import Modality
from mmcalib.engine.child.processor import Processor
from mmcalib.engine.messages import Knob

# An edge length is at most some thousands of pixels, a pixel area at least some tens of thousands
# (the smallest default area known is Qwen3-VL's 65,536): the two spellings of `longest_edge`.
_SMALLEST_AREA_PX = 20_000

_SCOPES: tuple[tuple[Modality, str, str], ...] = (
    ("image", "images_kwargs", "image_processor"),
    ("video", "videos_kwargs", "video_processor"),
)


def find_knobs(default: Processor) -> Iterator[Knob]:
    """Yield the knobs that this model's processor has, each with its default value."""
    info = default.info
    processor = info.get_hf_processor()
    for modality, scope, attribute in _SCOPES:
        if modality not in info.supported_mm_limits:
            continue
        part = getattr(processor, attribute, None)
        if part is not None:
            yield from _pixel_area(part, modality, scope)
    if "image" in info.supported_mm_limits:
        yield from _patches(info, processor)


def _pixel_area(part: Any, modality: Modality, scope: str) -> Iterator[Knob]:
    """`size.longest_edge` where it means an area in pixels: the Qwen-VL family and its heirs."""
    size = dict(getattr(part, "size", None) or {})
    longest, shortest = size.get("longest_edge"), size.get("shortest_edge")
    if not longest or not shortest or longest < _SMALLEST_AREA_PX:
        return
    patch_px = getattr(part, "patch_size", None)
    merge = getattr(part, "merge_size", None)
    unit = (patch_px * merge) ** 2 if patch_px and merge else None
    yield Knob(
        name=f"{scope}.size.longest_edge",
        modality=modality,
        path=(scope, "size", "longest_edge"),
        value=int(longest),
        unit_tokens=unit,
        companions={"shortest_edge": int(shortest)},
    )


def _patches(info: Any, processor: Any) -> Iterator[Knob]:
    """`max_dynamic_patch` (InternVL) and `num_crops` (Phi): tiles that an image is cut into."""
    config = info.get_hf_config()
    for name in ("max_dynamic_patch", "num_crops"):
        for holder in (getattr(processor, "image_processor", None), processor, config):
            value = getattr(holder, name, None)
            if isinstance(value, int) and value > 1:
                yield Knob(name, "image", (name,), value, unit_tokens=None)
                break
