"""Which of the model's options are knobs: a detector for each type, and what it tries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, product
from typing import Any, assert_never

from mmcalib.child.knobs.tiles import tiles
from mmcalib.child.knobs.trial import Spelling, Trial
from mmcalib.child.media import load
from mmcalib.child.processor import Processor
from mmcalib.domain.knobs import (
    KNOBS,
    AreaCap,
    CropCap,
    EdgeCap,
    FrameSampling,
    Knob,
    Setting,
    TileCap,
    TokenCap,
)
from mmcalib.domain.shapes import Modality, VideoShape
from mmcalib.engine.messages import Blank

_SWITCH, _CROPS = "do_pan_and_scan", "pan_and_scan_max_num_crops"
# A slim image is cut into no fewer; one crop alone would be the image again.
_FEWEST = 2
# A clip that every sampler has to thin out: half a minute at 30 frames a second.
_CLIP = VideoShape(num_frames=900, fps=30.0, duration_s=30.0, width_px=64, height_px=64)
# Values that are tried: so many equal steps up to the default.
_STEPS = 8
# What Gemma 4's processor takes, and nothing between.
_SOFT_TOKENS = (70, 140, 280, 560, 1120)


def find_knobs(default: Processor, under: Callable[[Setting], Processor]) -> Iterator[Knob]:
    """Yield the knobs that this model has, each with its default value and in the spelling that
    moves items of its own modality, and if there is one, of no other. `under` gives the processor
    of another setting.
    """
    trial = Trial(default, under)
    for kind in KNOBS:
        yield from _found(kind, trial)


def _found(kind: type[Knob], trial: Trial) -> Iterator[Knob]:
    if kind is AreaCap:
        return areas(trial)
    if kind is EdgeCap:
        return _edges(trial)
    if kind is TileCap:
        return tiles(trial)
    if kind is CropCap:
        return _crops(trial)
    if kind is FrameSampling:
        return _frames(trial)
    if kind is TokenCap:
        return _tokens(trial)
    assert_never(kind)


def _edges(trial: Trial) -> Iterator[Knob]:
    """`size.longest_edge` of Idefics3 and SmolVLM, in steps of their tiles."""
    part = trial.part("image_processor")
    if part is None or "image" not in trial.modalities:
        return
    longest = dict(getattr(part, "size", None) or {}).get("longest_edge")
    tile = dict(getattr(part, "max_image_size", None) or {}).get("longest_edge")
    if not longest or not tile or not tile < longest < SMALLEST_AREA_PX:
        return
    found = trial.of_images("size", "longest_edge", tried=int(tile))
    if found is None:
        return
    path, bleeds = found
    steps = (*range(int(tile), int(longest), int(tile)), int(longest))
    yield EdgeCap(path=path, value=int(longest), steps=steps, bleeds=bleeds)


def _crops(trial: Trial) -> Iterator[Knob]:
    """Pan-and-scan of Gemma 3: the most crops; 0 switches them off, as most checkpoints do."""
    most = _crop_default(trial, _CROPS)
    if "image" not in trial.modalities or not isinstance(most, int) or most < _FEWEST:
        return
    value = most if _crop_default(trial, _SWITCH) else 0
    tried = 0 if value else _FEWEST
    found = trial.of_images(_CROPS, tried=tried, beside={_SWITCH: bool(tried)})
    if found is None:
        return
    path, bleeds = found
    steps = (0, *range(_FEWEST, most + 1))
    yield CropCap(path=path, value=value, steps=steps, switch=_SWITCH, bleeds=bleeds)


def _crop_default(trial: Trial, name: str) -> Any:
    """The checkpoint's own value, else that of the processor's class."""
    own = getattr(trial.part("image_processor"), name, None)
    if own is not None:
        return own
    accepted = getattr(trial.info.get_hf_processor(), "valid_processor_kwargs", None)
    return getattr(accepted, "_defaults", {}).get("images_kwargs", {}).get(name)


def _frames(trial: Trial) -> Iterator[Knob]:
    """The loader's `num_frames` or `fps`: whichever of them the model's own loader heeds."""
    if "video" not in trial.modalities:
        return
    kept = _sampled_frames(trial.default)
    for name, tried in (("num_frames", 8), ("fps", 1)):
        now = _sampled_frames(trial.under(Setting(media_io_kwargs={"video": {name: tried}})))
        if now == kept:
            continue
        value = kept if name == "num_frames" else _whole(kept / _CLIP.duration_s)
        parts = [value * step / _STEPS for step in range(1, _STEPS + 1)]
        steps = {_whole(part) if name == "fps" else max(1, round(part)) for part in parts}
        yield FrameSampling(path=("video", name), value=value, steps=tuple(sorted(steps)))
        return


def _sampled_frames(processor: Processor) -> int:
    return load(Blank(_CLIP), processor)[1][0]


def _whole(value: float) -> int | float:
    """2.0 as 2, the way that people write it; other values as they are."""
    return int(value) if value == int(value) else value


# An edge length is at most some thousands of pixels, a pixel area at least some tens of thousands
# (the smallest default area known is Qwen3-VL's 65,536): the two meanings of `longest_edge`.
SMALLEST_AREA_PX = 20_000
# Small enough that it changes the probes.
_TRIED_PX = 100_000
_PARTS: tuple[tuple[Modality, str, str], ...] = (
    ("image", "images_kwargs", "image_processor"),
    ("video", "videos_kwargs", "video_processor"),
)


def areas(trial: Trial) -> Iterator[Knob]:
    """The largest area of an image, and of a video or its frames: by whichever of its names the
    installed transformers heeds, and vLLM takes beside the other's.
    """
    first = [cap for part in _PARTS for cap in islice(_area_caps(trial, *part), 1)]
    if _together(trial, first):
        yield from first
        return
    every = product(*(_area_caps(trial, *part) for part in _PARTS))
    yield from next((caps for caps in every if _together(trial, caps)), first)


def _together(trial: Trial, caps: Iterable[AreaCap]) -> bool:
    return trial.together({cap.modality: cap.setting(_tried(cap.least_px)) for cap in caps})


def _tried(least_px: int) -> int:
    return max(least_px, _TRIED_PX)


def _area_caps(trial: Trial, modality: Modality, scope: str, attribute: str) -> Iterator[AreaCap]:
    """One of each spelling that is heeded, those first that bleed into nothing."""
    part = trial.part(attribute)
    if modality not in trial.modalities or part is None:
        return
    size = dict(getattr(part, "size", None) or {})
    most = size.get("longest_edge") or getattr(part, "max_pixels", None)
    least = size.get("shortest_edge") or getattr(part, "min_pixels", None)
    if not most or not least or most < SMALLEST_AREA_PX:
        return
    patch_px, merge = getattr(part, "patch_size", None), getattr(part, "merge_size", None)
    spellings = _spellings(scope, int(least))
    for (path, beside), bleeds in trial.heeded(spellings, _tried(int(least)), modality):
        yield AreaCap(
            modality=modality,
            path=path,
            value=int(most),
            token_px=(patch_px * merge) ** 2 if patch_px and merge else None,
            least_name=next(iter(beside)),
            least_px=int(least),
            bleeds=bleeds,
        )


def _spellings(scope: str, least: int) -> Iterator[Spelling]:
    """Of one modality first; today's names before yesterday's."""
    for outer in ((scope,), ()):
        yield (*outer, "size", "longest_edge"), {"shortest_edge": least}
        yield (*outer, "max_pixels"), {"min_pixels": least}


def _tokens(trial: Trial) -> Iterator[Knob]:
    """`max_soft_tokens` of Gemma 4."""
    value = getattr(trial.part("image_processor"), "max_soft_tokens", None)
    if "image" not in trial.modalities or value not in _SOFT_TOKENS:
        return
    tried = next(tokens for tokens in _SOFT_TOKENS if tokens != value)
    found = trial.of_images("max_soft_tokens", tried=tried)
    if found is not None:
        path, bleeds = found
        yield TokenCap(path=path, value=value, steps=_SOFT_TOKENS, bleeds=bleeds)
