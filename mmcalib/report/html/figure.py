"""A chart with all that stands around it: words, legend, and its data as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.domain.label import Label
from mmcalib.report.html.canvas import Drawing


@dataclass(frozen=True, slots=True)
class PageFigure:
    """`key` is unique in the page. `legend` pairs a colour of the style sheet with its meaning;
    `rows` are the drawn data, for those who cannot or will not look at the drawing.
    """

    key: str
    title: str
    summary: str
    drawing: Drawing
    labels: Sequence[Label]
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    legend: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
