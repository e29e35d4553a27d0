"""What `mmcalib drift` says on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.table import Table
from rich.text import Text

from mmcalib.derive.drift.figure import Likeness
from mmcalib.result.drift import Drift, DriftPart
from mmcalib.wording import number, share

_MARKS: Final[Mapping[Likeness, tuple[str, str]]] = {
    "same": ("ok", "green"),
    "shifted": ("NO", "red"),
    "unknown": ("??", "yellow"),
    "shown": ("", "dim"),
}
_NOBODY: Final = "-"


def drift_table(drift: Drift) -> Table:
    """A figure per line: today, calibrated, and between what it counts as the same."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("figure")
    for name in ("today", "calibrated", "the same between"):
        table.add_column(name, justify="right")
    for figure in drift.figures:
        mark, style = _MARKS[figure.likeness]
        table.add_row(
            Text(mark, style=style),
            figure.name,
            _said(figure, figure.today),
            _said(figure, figure.calibrated),
            _range(figure),
        )
    return table


def drift_lines(drift: Drift) -> Iterator[str]:
    """What each figure that shifted can show, and what it cannot."""
    for figure in drift.shifted:
        yield f"{figure.name}: {figure.meaning}"


def _range(figure: DriftPart) -> str:
    if figure.likeness not in ("same", "shifted"):
        return ""
    if figure.least is None:
        return f"up to {_said(figure, figure.most)}"
    return f"{_said(figure, figure.least)} and {_said(figure, figure.most)}"


def _said(figure: DriftPart, value: float | None) -> str:
    if value is None:
        return _NOBODY
    match figure.unit:
        case "tokens":
            return number(round(value))
        case "share":
            return share(value)
        case "items" | "count":
            return f"{value:.2f}"
