"""The longest edge of an image in pixels, where the processor cuts it into tiles of one size."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.child.knobs.areas import SMALLEST_AREA_PX
from mmcalib.child.knobs.trial import Trial
from mmcalib.domain.knobs import EdgeCap


def edges(trial: Trial) -> Iterator[EdgeCap]:
    """`size.longest_edge` of Idefics3 and SmolVLM, in steps of their tiles."""
    part = trial.part("image_processor")
    if part is None or "image" not in trial.modalities:
        return
    longest = dict(getattr(part, "size", None) or {}).get("longest_edge")
    tile = dict(getattr(part, "max_image_size", None) or {}).get("longest_edge")
    if not longest or not tile or not tile < longest < SMALLEST_AREA_PX:
        return
    paths = (("images_kwargs", "size", "longest_edge"), ("size", "longest_edge"))
    found = trial.first([(path, {}) for path in paths], int(tile), "image")
    if found is None:
        return
    (path, _), bleeds = found
    steps = (*range(int(tile), int(longest), int(tile)), int(longest))
    yield EdgeCap(path=path, value=int(longest), steps=steps, bleeds=bleeds)
