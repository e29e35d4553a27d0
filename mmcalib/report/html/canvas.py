"""Static SVG charts, drawn by Vega-Lite in two widths and in the page's CSS colours.

Why Vega-Lite through vl-convert: the page must show its charts without JavaScript, follow light and
dark, and stay below 5 MB. vl-convert is one wheel of 33 MB without dependencies, draws offline and
keeps `var(--x)` as it is, and Vega names every mark for screen readers. It comes with an extra:
without it a chart is a line that names the extra, and its table. Plotly's script alone has
4.8 MB and draws nothing without JavaScript; Matplotlib and lets-plot bake colours in; pygal knows
neither reference lines nor maps.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from mmcalib.domain.knobs import Label
from mmcalib.text import map_strings, printable

Layer = dict[str, Any]

_SVG = re.compile(r"<svg [^>]*?viewBox=\"0 0 (?P<width>[\d.]+) (?P<height>[\d.]+)\"[^>]*>")
# Room for the labels of the vertical axis, and for half of the last label of the other one.
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 54, 22, 30, 46
# Between these a log axis needs ticks at 1, 3, 10, 30; over more decades at 1, 10, 100.
_DENSE_DECADES = 3.2
# A row of words above the data, and a wide guess at one letter of them.
ROW_PX, _CHAR_PX = 17, 7
_UNDRAWN = Markup(
    '<p>No chart: <code>pip install "mmcalib[report]"</code>, then <code>mmcalib report</code> '
    "draws it. The table below has its data.</p>"
)
# `~s` alone writes 0k.
SHORT = "datum.value == 0 ? '0' : format(datum.value, '~s')"


@dataclass(frozen=True, slots=True)
class Canvas:
    """Pixels inside the axes."""

    width_px: int
    height_px: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """The chart for wide and for narrow screens; the page shows one of them."""

    wide: Markup
    narrow: Markup


def undrawn_words() -> str:
    """Return the line that names the missing extra; empty if it is installed."""
    if importlib.util.find_spec("vl_convert"):
        return ""
    return 'report.html has tables in place of charts: pip install "mmcalib[report]" draws them'


def draw(
    layers: Callable[[Canvas], Iterable[Layer]],
    label: str,
    *,
    height_px: int = 240,
    left_px: int = _LEFT_PX,
) -> Drawing:
    """Draw `layers` on both canvases. `label` names the chart for screen readers."""
    if undrawn_words():
        return Drawing(_UNDRAWN, _UNDRAWN)
    wide, narrow = (Canvas(px - left_px - _RIGHT_PX, height_px) for px in (720, 320))
    return Drawing(*(_svg(layers(canvas), canvas, label, left_px) for canvas in (wide, narrow)))


def _svg(layers: Iterable[Layer], canvas: Canvas, label: str, left_px: int) -> Markup:
    import vl_convert

    around = {"left": left_px, "right": _RIGHT_PX, "top": _TOP_PX, "bottom": _BOTTOM_PX}
    spec = {
        "width": canvas.width_px,
        "height": canvas.height_px,
        "padding": around,
        "autosize": {"type": "none"},
        "background": None,
        "layer": list(layers),
        "config": _CONFIG,
    }
    text = vl_convert.vegalite_to_svg(map_strings(spec, printable), allowed_base_urls=[])
    found = _SVG.match(text)
    if found is None:
        raise ValueError("vl-convert drew no SVG of a known size")
    size = f'width="{found["width"]}" height="{found["height"]}"'
    box = f'viewBox="0 0 {found["width"]} {found["height"]}"'
    name = escape(printable(label))
    head = f'<svg {size} {box} fill="none" role="graphics-document" aria-label="{name}">'
    return Markup(head + text[found.end() :])  # noqa: S704 - Vega escapes what it is given


def linear_axis(field: str, low: float, high: float, axis: Layer, **scale: Any) -> Layer:
    """A quantitative encoding from `low` to `high`."""
    span = {"domain": [low, high], "nice": False, **scale}
    return {"field": field, "type": "quantitative", "scale": span, "axis": axis}


def log_axis(field: str, title: str, low: float, high: float) -> Layer:
    """A quantitative encoding on a log scale, with ticks at round numbers."""
    steps = (1, 3) if math.log10(high / low) < _DENSE_DECADES else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
    axis = {"title": title, "labelExpr": SHORT, "values": ticks, "grid": False}
    return linear_axis(field, low, high, axis, type="log")


# The text of a mark, for screen readers and for the tip at the pointer.
TIP: Layer = {"field": "tip"}


def layer(values: Sequence[Layer], mark: Layer, **encoding: Layer) -> Layer:
    """Return a layer with a mark for each value; without values, one fixed mark."""
    return {"data": {"values": values or [{}]}, "mark": mark, "encoding": encoding}


def marks(values: Sequence[Layer], mark: Layer, x: Layer, y: Layer, **encoding: Layer) -> Layer:
    """A layer of filled marks, each with the words in the field `tip` of its value."""
    style = {"type": "point", "filled": True, "stroke": "var(--paper)", "opacity": 1, **mark}
    return layer(values, style, x=x, y=y, description=TIP, **encoding)


def trace(values: Sequence[Layer], x: Layer, y: Layer, order: str = "", **style: Any) -> Layer:
    """A line through the values, in the order of the field `order`, or else along x."""
    mark = {"type": "line", "strokeWidth": 1.5, "aria": False, **style}
    by = {"order": {"field": order, "type": "quantitative"}} if order else {}
    return layer(values, mark, x=x, y=y, **by)


def colours_of(field: str, names: Sequence[str], colours: Sequence[str]) -> Layer:
    """Return a fill encoding that gives each name of the field a colour of the style sheet."""
    scale = {"domain": names, "range": [f"var(--{colour})" for colour in colours]}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def upright(title: str) -> Layer:
    """Return a horizontal axis title above the axis, aligned with its left end."""
    return {
        "title": title,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleBaseline": "bottom",
        "titleX": -_LEFT_PX + 6,
        "titleY": -14,
    }


def reference(lines: Sequence[tuple[str, float, str]], canvas: Canvas, x: Layer) -> Iterator[Layer]:
    """Draw vertical lines at (words, value, colour), with `ROW_PX` above the data for each."""
    # From right to left, with words to the left, so that no line crosses the words of another.
    low, high = x["scale"]["domain"]
    log = x["scale"].get("type") == "log"
    for row, (words, value, colour) in enumerate(sorted(lines, key=lambda line: -line[1])):
        share = (value - low) / (high - low)
        if log:
            share = math.log(value / low) / math.log(high / low)
        left, y = share * canvas.width_px, 6 + row * ROW_PX
        rule = {"type": "rule", "color": colour, "strokeWidth": 1.5, "aria": False}
        ends = {"y": {"value": y - 6}, "y2": {"value": canvas.height_px}}
        yield layer([], rule, x={"value": left}, **ends)
        fits = left > len(words) * _CHAR_PX
        at, side = (left - 6, "right") if fits else (left + 6, "left")
        yield from text(words, at, y, side, colour)


def text(
    words: str, x: float, y: float, align: str, colour: str, *, weight: int = 600, halo: bool = True
) -> Iterator[Layer]:
    """Write words at a place in pixels; a halo keeps them readable over lines."""
    mark = {"type": "text", "text": words, "x": x, "y": y, "align": align, "aria": False}
    mark |= {"color": colour, "fontWeight": weight}
    if halo:
        yield layer([], {**mark, "stroke": "var(--paper)", "strokeWidth": 4, "strokeJoin": "round"})
    yield layer([], mark)


_CONFIG: Layer = {
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink-2)",
        "titleColor": "var(--ink-2)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line-2)",
        "tickColor": "var(--line-2)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": 400,
        "titlePadding": 10,
        "labelPadding": 6,
        "tickSize": 4,
        "labelOverlap": "greedy",
        "labelSeparation": 6,
    },
    "axisY": {"domain": False, "ticks": False, "tickCount": 5},
    "axisX": {"labelFlush": False},
    "text": {"fontSize": 12, "baseline": "middle"},
}


@dataclass(frozen=True, slots=True)
class PageFigure:
    """`key` is unique in the page; `legend` pairs colours with meanings, `rows` are its data."""

    key: str
    title: str
    summary: str
    drawing: Drawing
    labels: Sequence[Label]
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    legend: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
