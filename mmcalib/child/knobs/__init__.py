"""Which of the model's processor options change what its items cost, found by trying them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

from mmcalib.child.knobs.areas import areas
from mmcalib.child.knobs.crops import crops
from mmcalib.child.knobs.edges import edges
from mmcalib.child.knobs.frames import frames
from mmcalib.child.knobs.tiles import tiles, tiles_images
from mmcalib.child.knobs.trial import Trial
from mmcalib.child.processor import Processor
from mmcalib.domain.area_cap import AreaCap
from mmcalib.domain.knobs import KNOBS, CropCap, EdgeCap, FrameSampling, Knob, TileCap
from mmcalib.domain.setting import Setting

__all__ = ["find_knobs", "tiles_images"]


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
        return edges(trial)
    if kind is TileCap:
        return tiles(trial)
    if kind is CropCap:
        return crops(trial)
    if kind is FrameSampling:
        return frames(trial)
    assert_never(kind)
