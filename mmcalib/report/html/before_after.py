"""A part of one image as it is, and as it is left when the processor has made it smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmcalib.census.executors.executor import Named
from mmcalib.derive.bounds import Area
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import ImageShape
from mmcalib.report.html.costly import can_be_drawn, named, pictures
from mmcalib.report.html.known import Costed, costed
from mmcalib.report.html.roots import Roots
from mmcalib.result.calibration import CalibrationDocument

# Of its pixels: what is rounded to whole patches looks the same.
_WORTH_SHOWING = 0.9


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
    rule = part.rule

    def kept(image: tuple[ImageShape, Costed]) -> float:
        """The share of its pixels."""
        shape, _ = image
        across, down = rule.resized(shape.width_px, shape.height_px)
        return across * down / (shape.width_px * shape.height_px)

    at_hand = [
        (one.shape, one)
        for one in costed(calibration, "image")
        if isinstance(one.shape, ImageShape)
        and one.exemplar
        and can_be_drawn(Item(one.exemplar, "image"))
        and (roots is None or roots.hold(one.exemplar))
    ]
    smallest = min(at_hand, key=kept, default=None)
    if smallest is None or kept(smallest) >= _WORTH_SHOWING:
        return None
    shape, one = smallest
    width, height = rule.resized(shape.width_px, shape.height_px)
    look = Named("mmcalib.report.html.thumbnail", "detail", (str(width), str(height)))
    item = Item(one.exemplar, "image")
    drawn = pictures([item], look).get(item)
    if drawn is None:
        return None
    before, after = drawn.split(" ")
    name = named(one.exemplar, names)
    return BeforeAfter(name, shape, one.tokens, width, height, before, after)
