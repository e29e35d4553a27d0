"""The bars of the memory chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmcalib import wording
from mmcalib.report.html.canvas import ROW_PX, Layer, text
from mmcalib.results.memory import Memory
from mmcalib.sizes import GIB

_BAR_ROW_PX, _BAR_PX = 58, 26
# Two rows of words above the first bar, one above each.
_TOP_PX = 2 * ROW_PX + 6
_NAME_PX = 24
# A label inside a part needs this much of it.
_LABEL_PX = 60


@dataclass(frozen=True, slots=True)
class BarPart:
    """One piece of one bar, in bytes from `start` to `end`."""

    bar: str
    name: str
    colour: str
    start: int
    end: int
    label: str


def segments(parts: Sequence[BarPart], bars: Sequence[str], x: Layer) -> Layer:
    colours = list(dict.fromkeys(part.colour for part in parts))
    values = [
        {
            "row": row_y(bars.index(part.bar)) + _NAME_PX,
            "under": row_y(bars.index(part.bar)) + _NAME_PX + _BAR_PX,
            "start": part.start / GIB,
            "end": part.end / GIB,
            "colour": part.colour,
            "tip": f"{part.bar} · {part.name} {wording.gib(part.end - part.start)} · {part.label}",
        }
        for part in parts
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "rect", "stroke": "var(--paper)", "strokeWidth": 1},
        "encoding": {
            "x": x,
            "x2": {"field": "end"},
            "y": {"field": "row", "type": "quantitative", "scale": None, "axis": None},
            "y2": {"field": "under"},
            "fill": {
                "field": "colour",
                "type": "nominal",
                "scale": {"domain": colours, "range": [f"var(--{c})" for c in colours]},
                "legend": None,
            },
            "description": {"field": "tip"},
        },
    }


def row_y(row: int) -> int:
    """Where a bar's row begins."""
    return _TOP_PX + row * _BAR_ROW_PX


def names(name: str, one: Memory, row: int) -> Iterator[Layer]:
    """Above each bar its name, and what is missing for an engine to start."""
    short = one.kv_cache_bytes is not None and one.kv_cache_bytes < 0
    said = f"{name}: {wording.gib(-(one.kv_cache_bytes or 0))} short" if short else name
    colour = "var(--bad)" if short else "var(--ink)"
    yield from text(said, 0, row_y(row) + 13, "left", colour)


def inside(
    parts: Sequence[BarPart], bars: Sequence[tuple[str, Memory]], scale: float
) -> Iterator[Layer]:
    """Sizes of the parts that are wide enough for them."""
    rows = [name for name, _ in bars]
    for part in parts:
        start, end = part.start / GIB * scale, part.end / GIB * scale
        if end - start >= _LABEL_PX:
            y = row_y(rows.index(part.bar)) + _NAME_PX + _BAR_PX / 2 + 1
            size = f"{(part.end - part.start) / GIB:.2f}"
            colour = f"var(--on-{part.colour})"
            middle = (start + end) / 2
            yield from text(size, middle, y, "center", colour, weight=500, halo=False)
