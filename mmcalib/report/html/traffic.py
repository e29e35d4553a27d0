"""Serving the corpus' requests: what each step held, beside what startup reserved."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import wording
from mmcalib.report.html.canvas import ROW_PX, SHORT, Canvas, Layer, draw, text, upright
from mmcalib.report.html.figure import PageFigure
from mmcalib.report.tensor_words import tensor_cells
from mmcalib.report.traffic_words import HEAD, highest_line, timeline_rows, traffic_sentence
from mmcalib.results.memory import HighestTrafficStep, ServedTraffic, TimelineStep, TrafficFigures
from mmcalib.sizes import GIB

# (words, field of a step, colour): each is above the next.
_SERIES = (
    ("highest within the step", "peak_bytes", "var(--accent)"),
    ("held between steps", "held_bytes", "var(--ink)"),
    ("kept alive by the encoder cache", "alive_bytes", "var(--ink-3)"),
)
# Tensors of the highest step that are named beside the pointer.
_NAMED = 5
_DEFAULT = ("highest within the step, by default", "peak_bytes", "var(--warn)")


def traffic(served: ServedTraffic) -> PageFigure:
    """The timeline of the calibrated configuration, and behind it what the default takes."""
    found, default = served.calibrated, served.default
    both = [found] if default is None else [found, default]
    most = max(max(one.peak_bytes, one.reserved_bytes) for one in both) / GIB * 1.15 or 1.0
    longest = max(one.steps for one in both)
    problem = wording.plain(served.default_problem).rstrip(".")
    x = {
        "field": "step",
        "type": "quantitative",
        "axis": {"title": "step of the engine", "labelExpr": SHORT, "grid": False, "tickCount": 6},
        "scale": {"domain": [0, max(longest, 1)], "nice": False},
    }
    y = {
        "field": "gib",
        "type": "quantitative",
        "axis": upright("above the loaded model, GiB"),
        "scale": {"domain": [0, most], "nice": False},
    }

    def layers(canvas: Canvas) -> Iterator[Layer]:
        if default is not None:
            apart = abs(default.reserved_bytes - found.reserved_bytes) / GIB
            near = apart / most * canvas.height_px < ROW_PX
            yield from _reserve(default, most, canvas, "by default", _DEFAULT[-1], below=near)
            yield _line(default.timeline, *_DEFAULT, x, y)
        yield from _reserve(found, most, canvas, "reserved at startup", "var(--ink)")
        for said, field, colour in _SERIES:
            yield _line(found.timeline, said, field, colour, x, y)
        if found.highest:
            yield _highest(found, found.highest, x, y)

    said = traffic_sentence(found)
    legend = [("chosen", _SERIES[0][0]), ("line", _SERIES[1][0]), ("faint", _SERIES[2][0])]
    if default is not None:
        legend.append(("default", _DEFAULT[0]))
    return PageFigure(
        key="traffic",
        title=f"{wording.number(found.requests)} requests on {served.gpu}",
        summary=said,
        drawing=draw(layers, f"Memory of each step while serving. {said}"),
        labels=(served.label,),
        head=HEAD,
        rows=list(timeline_rows(found)),
        legend=legend,
        notes=[
            *([_beside(found, default)] if default is not None else []),
            *([f"The default is not served: {problem}."] if problem else []),
            *([f"{highest_line(found.highest)}."] if found.highest else []),
            *(f"Assumed: {one}." for one in served.assumptions),
        ],
    )


def _beside(found: TrafficFigures, default: TrafficFigures) -> str:
    """What the default takes for the same requests."""
    gib, number = wording.gib, wording.number
    return (
        f"By default: {number(default.steps)} steps ({number(found.steps)} calibrated), "
        f"{number(default.encoder_waits)} held up by the encoder ({number(found.encoder_waits)}), "
        f"{number(default.preemptions)} preempted ({number(found.preemptions)}), "
        f"highest {gib(default.peak_bytes)} of {gib(default.reserved_bytes)} reserved "
        f"({gib(found.peak_bytes)} of {gib(found.reserved_bytes)})."
    )


def _reserve(
    found: TrafficFigures,
    most: float,
    canvas: Canvas,
    words: str,
    colour: str,
    *,
    below: bool = False,
) -> Iterator[Layer]:
    """A line across with its words, `below` where another's are above."""
    reserved = found.reserved_bytes / GIB
    height = canvas.height_px * (1 - reserved / most)
    yield {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "color": colour, "strokeDash": [5, 4], "aria": False},
        "encoding": {
            "y": {"value": height},
            "x": {"value": 0},
            "x2": {"value": canvas.width_px},
        },
    }
    said = f"{words} {wording.gib(found.reserved_bytes)}"
    yield from text(said, canvas.width_px, height + (10 if below else -10), "right", colour)


def _line(
    timeline: list[TimelineStep], said: str, field: str, colour: str, x: Layer, y: Layer
) -> Layer:
    values = [
        {"step": one.step, "gib": getattr(one, field) / GIB, "tip": _tip(one, said, field)}
        for one in timeline
    ]
    return {
        "data": {"values": values},
        "mark": {
            "type": "line",
            "color": colour,
            "strokeWidth": 1.5,
            "interpolate": "step-after",
            "aria": False,
        },
        "encoding": {"x": x, "y": y, "order": {"field": "step", "type": "quantitative"}},
    }


def _highest(found: TrafficFigures, highest: HighestTrafficStep, x: Layer, y: Layer) -> Layer:
    """The highest step, and what lived in it."""
    alive = (tensor_cells(one) for one in highest.largest[:_NAMED])
    tip = [
        f"step {wording.number(highest.number)}: {wording.gib(found.peak_bytes)}, the highest",
        *(f"{size} {made}" for size, _, _, made in alive),
    ]
    at = {
        "step": highest.number,
        "gib": found.peak_bytes / GIB,
        "tip": wording.plain(" · ".join(tip)),
    }
    return {
        "data": {"values": [at]},
        "mark": {
            "type": "point",
            "filled": True,
            "size": 60,
            "fill": "var(--accent)",
            "stroke": "var(--paper)",
            "opacity": 1,
        },
        "encoding": {"x": x, "y": y, "description": {"field": "tip"}},
    }


def _tip(one: TimelineStep, said: str, field: str) -> str:
    return f"step {wording.number(one.step)}: {wording.gib(getattr(one, field))} {said}"
