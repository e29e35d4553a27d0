"""Static SVG charts, drawn by Vega-Lite in two widths and in the page's CSS colours.

Why Vega-Lite through vl-convert: the page must show its charts without JavaScript, follow light and
dark, and stay below 5 MB. vl-convert is one wheel of 33 MB without dependencies, draws offline and
keeps `var(--x)` as it is, and Vega names every mark for screen readers. It comes with an extra:
without it a chart is a line that names the extra, and its table. Plotly's script alone has
4.8 MB and draws nothing without JavaScript; Matplotlib and lets-plot bake colours in; Altair
rejects `var(--x)`, and takes a second to import; pygal knows neither reference lines nor maps.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterable, Iterator, Sequence
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
HEIGHT_PX = 240
# A row of words above the data.
ROW_PX = 17
# A wide guess at the width of words, and whether they fit to the left of their place.
WORDS_PX = "(7 * length(datum.words))"
FITS_LEFT = f"scale('x', datum.x) > {WORDS_PX}"
_UNDRAWN = Markup(
    '<p>No chart: <code>pip install "mmcalib[report]"</code>, then <code>mmcalib report</code> '
    "draws it. The table below has its data.</p>"
)
# `~s` alone writes 0k.
SHORT = "datum.value == 0 ? '0' : format(datum.value, '~s')"


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
    layers: Iterable[Layer],
    label: str,
    x: Layer,
    y: Layer,
    *,
    height_px: int = HEIGHT_PX,
    left_px: int = _LEFT_PX,
) -> Drawing:
    """Draw `layers` in both widths. `label` names the chart for screen readers.

    The fields `x` and `y` of a value are its place on these axes, unless its layer has its own.
    """
    if undrawn_words():
        return Drawing(_UNDRAWN, _UNDRAWN)
    spec = {
        "height": height_px,
        "padding": {"left": left_px, "right": _RIGHT_PX, "top": _TOP_PX, "bottom": _BOTTOM_PX},
        "autosize": {"type": "none"},
        "background": None,
        "encoding": {"x": {"field": "x", **x}, "y": {"field": "y", **y}},
        "layer": list(layers),
        "config": _CONFIG,
    }
    return Drawing(*(_svg({**spec, "width": px - left_px - _RIGHT_PX}, label) for px in (720, 320)))


def _svg(spec: Layer, label: str) -> Markup:
    import vl_convert

    text = vl_convert.vegalite_to_svg(map_strings(spec, printable), allowed_base_urls=[])
    found = _SVG.match(text)
    if found is None:
        raise ValueError("vl-convert drew no SVG of a known size")
    size = f'width="{found["width"]}" height="{found["height"]}"'
    box = f'viewBox="0 0 {found["width"]} {found["height"]}"'
    name = escape(printable(label))
    head = f'<svg {size} {box} fill="none" role="graphics-document" aria-label="{name}">'
    return Markup(head + text[found.end() :])  # noqa: S704 - Vega escapes what it is given


def linear_axis(low: float, high: float, axis: Layer, **scale: Any) -> Layer:
    """A quantitative encoding from `low` to `high`."""
    span = {"domain": [low, high], "nice": False, **scale}
    return {"type": "quantitative", "scale": span, "axis": axis}


def log_axis(low: float, high: float, **axis: Any) -> Layer:
    """A quantitative encoding on a log scale, with ticks at round numbers."""
    steps = (1, 3) if math.log10(high / low) < _DENSE_DECADES else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
    axis = {"labelExpr": SHORT, "values": ticks, "grid": False, **axis}
    return linear_axis(low, high, axis, type="log")


# Places in pixels, and the colour of a mark.
PIXELS: Layer = {"type": "quantitative", "scale": None, "axis": None}
COLOUR: Layer = {"field": "colour", "type": "nominal", "scale": None}


def layer(values: Sequence[Layer], mark: Layer, **encoding: Layer) -> Layer:
    """Return a layer with a mark for each value."""
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


def marks(values: Sequence[Layer], mark: Layer, **encoding: Layer) -> Layer:
    """A layer of filled marks, each with the words in the field `tip` for screen readers."""
    style = {"type": "point", "filled": True, "stroke": "var(--paper)", "opacity": 1, **mark}
    return layer(values, style, description={"field": "tip"}, **encoding)


def trace(values: Sequence[Layer], **style: Any) -> Layer:
    """A line through the values, in their order."""
    mark = {"type": "line", "strokeWidth": 1.5, "aria": False, **style}
    return layer(values, mark, order={"value": None})


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


def reference(lines: Sequence[tuple[str, float, str]]) -> Iterator[Layer]:
    """Draw vertical lines at (words, value, colour), with `ROW_PX` above the data for each."""
    # From right to left, with words to the left, so that no line crosses the words of another.
    values = [
        {"words": words, "x": value, "colour": colour, "row": row * ROW_PX}
        for row, (words, value, colour) in enumerate(sorted(lines, key=lambda line: -line[1]))
    ]
    y = {"field": "row", **PIXELS}
    rule = {"type": "rule", "strokeWidth": 1.5, "aria": False}
    yield layer(values, rule, y=y, y2={"value": "height"}, color=COLOUR)
    yield from text(values, dy=6, y=y)


def text(
    values: Sequence[Layer],
    left: str = FITS_LEFT,
    *,
    words: str = "datum.words",
    gap_px: int = 6,
    dy: float | str = 0,
    weight: int = 600,
    halo: bool = True,
    **encoding: Layer,
) -> Iterator[Layer]:
    """Write the `words` of each value left of its place, or right where `left` does not hold.

    `left`, `dy` and `words` are expressions of Vega. A halo keeps words readable over lines.
    """
    mark: Layer = {"type": "text", "text": {"expr": words}, "dy": {"expr": f"{dy}"}}
    mark |= {"aria": False, "fontWeight": weight, "align": {"expr": f"{left} ? 'right' : 'left'"}}
    mark |= {"dx": {"expr": f"{left} ? -{gap_px} : {gap_px}"}}
    encoding = {"color": COLOUR, **encoding}
    if halo:
        around = {"stroke": "var(--paper)", "strokeWidth": 4, "strokeJoin": "round"}
        yield layer(values, {**mark, **around}, **encoding)
    yield layer(values, mark, **encoding)


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
    """`key` is unique in the page; `legend` pairs colours with meanings, `rows` are its data. The
    page and the drawing show control characters of foreign words.
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
