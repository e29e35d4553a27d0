"""Areas in pixels: the Qwen-VL family and its heirs."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.child.knobs.trial import Spelling, Trial
from mmcalib.domain.area_cap import AreaCap
from mmcalib.domain.knobs import Knob
from mmcalib.domain.shapes import Modality

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
    installed transformers heeds.
    """
    for modality, scope, attribute in _PARTS:
        part = trial.part(attribute)
        if modality not in trial.modalities or part is None:
            continue
        size = dict(getattr(part, "size", None) or {})
        most = size.get("longest_edge") or getattr(part, "max_pixels", None)
        least = size.get("shortest_edge") or getattr(part, "min_pixels", None)
        if not most or not least or most < SMALLEST_AREA_PX:
            continue
        tried = max(int(least), _TRIED_PX)
        found = trial.first(_spellings(scope, int(least)), tried, modality)
        if found is None:
            continue
        (path, beside), bleeds = found
        patch_px, merge = getattr(part, "patch_size", None), getattr(part, "merge_size", None)
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
