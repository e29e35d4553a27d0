"""Which of the model's processor options change what its items cost, found by trying them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmcalib.census.shapes import Modality, VideoShape
from mmcalib.engine.child.media import load
from mmcalib.engine.child.processor import Processor
from mmcalib.engine.messages import Blank, Knob
from mmcalib.engine.setting import Setting

# An edge length is at most some thousands of pixels, a pixel area at least some tens of thousands
# (the smallest default area known is Qwen3-VL's 65,536): the two spellings of `longest_edge`.
_SMALLEST_AREA_PX = 20_000

_SCOPES: tuple[tuple[Modality, str, str], ...] = (
    ("image", "images_kwargs", "image_processor"),
    ("video", "videos_kwargs", "video_processor"),
)


# A clip that every sampler has to thin out: half a minute at 30 frames a second.
_CLIP = VideoShape(num_frames=900, fps=30.0, duration_s=30.0, width_px=64, height_px=64)
# Values of a frame knob that are tried: the default and fractions of it.
_FRACTIONS = (8, 4, 2, 1)


def find_knobs(default: Processor, under: Callable[[Setting], Processor]) -> Iterator[Knob]:
    """Yield the knobs that this model has, each with its default value.

    `under` gives the processor of another setting, for those that are found by trying.
    """
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
    if "video" in info.supported_mm_limits:
        yield from _frames(default, under)


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


def tiles_images(default: Processor) -> bool:
    """Whether images are cut into tiles in one of a list of layouts: InternVL's numbers of tiles,
    LLaVA's list of sizes.
    """
    processor = default.info.get_hf_processor()
    holders = (getattr(processor, "image_processor", None), processor, default.info.get_hf_config())
    names = ("max_dynamic_patch", "image_grid_pinpoints")
    return any(getattr(holder, name, None) for holder in holders for name in names)


def _frames(default: Processor, under: Callable[[Setting], Processor]) -> Iterator[Knob]:
    """The loader's `num_frames` or `fps`: whichever of them the model's own loader heeds."""
    kept = _sampled_frames(default)
    for name, trial in (("num_frames", 8), ("fps", 1)):
        tried = _sampled_frames(under(Setting(media_io_kwargs={"video": {name: trial}})))
        if tried == kept:
            continue
        value = kept if name == "num_frames" else _whole(kept / _CLIP.duration_s)
        steps = (_whole(value / fraction) for fraction in _FRACTIONS)
        yield Knob(
            name=f"video.{name}",
            modality="video",
            path=("video", name),
            value=value,
            unit_tokens=None,
            argument="media_io_kwargs",
            steps=tuple(step for step in steps if name == "fps" or step >= 1),
        )
        return


def _sampled_frames(processor: Processor) -> int:
    return load(Blank("video", _CLIP), processor)[1][0]


def _whole(value: float) -> int | float:
    """2.0 as 2, the way that people write it; other values as they are."""
    return int(value) if value == int(value) else value
