"""A part of one image as it is, and as it is left when the processor has made it smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mmcalib.census.executors.executor import Named, ProbeTask
from mmcalib.census.executors.local import LocalPool
from mmcalib.derive.bounds import Area
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import ImageShape
from mmcalib.report.html.costly import MEMORY_BYTES, PATIENCE_S, PICTURE, can_be_drawn, named
from mmcalib.report.html.known import costed
from mmcalib.report.html.roots import Roots
from mmcalib.result.calibration import CalibrationDocument


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """`before` and `after` are data URIs of the same part of the image `name`, which is of `shape`
    and has `tokens` when it is `width_px` by `height_px`.
    """

    name: str
    shape: ImageShape
    tokens: int
    width_px: int
    height_px: int
    before: str
    after: str


def before_after(
    calibration: CalibrationDocument,
    *,
    names: Mapping[str, str] | None,
    roots: Roots | None = None,
) -> BeforeAfter | None:
    """Of the image that is made smallest among the costliest whose file is at hand. None where none
    is made smaller, or no rule says by how much.
    """
    part = calibration.costs.modalities.get("image") if calibration.costs else None
    if part is None or not isinstance(part.rule, Area):
        return None
    made: list[tuple[float, BeforeAfter, Item]] = []
    for one in costed(calibration, "image"):
        item = Item(one.exemplar, "image")
        if not one.exemplar or not isinstance(one.shape, ImageShape) or not can_be_drawn(item):
            continue
        if roots is not None and not roots.hold(one.exemplar):
            continue
        across, down = part.rule.resized(one.shape.width_px, one.shape.height_px)
        kept = across * down / (one.shape.width_px * one.shape.height_px)
        name = named(one.exemplar, names)
        found = BeforeAfter(name, one.shape, one.tokens, across, down, "", "")
        made.append((kept, found, item))
    if not made:
        return None
    kept, found, item = min(made, key=lambda one: one[0])
    drawn = _drawn(item, found.width_px, found.height_px) if kept < _WORTH_SHOWING else None
    return replace(found, before=drawn[0], after=drawn[1]) if drawn else None


# Of its pixels: what is rounded to whole patches looks the same.
_WORTH_SHOWING = 0.9


def _drawn(item: Item, width_px: int, height_px: int) -> tuple[str, str] | None:
    look = Named("mmcalib.report.html.thumbnail", "detail", (str(width_px), str(height_px)))
    with LocalPool(look, workers=1, timeout_s=PATIENCE_S, memory_bytes=MEMORY_BYTES) as pool:
        (answer,) = pool.result(pool.submit([ProbeTask(item)]))
    if not answer.line.startswith(PICTURE):
        return None
    before, after = answer.line.split(" ")
    return before, after
