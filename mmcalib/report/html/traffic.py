"""Serving the corpus' requests: what each step held, beside what startup reserved."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import wording
from mmcalib.report.html.canvas import SHORT, Canvas, Layer, draw, text, upright
from mmcalib.report.html.figure import PageFigure
from mmcalib.report.traffic_words import HEAD, highest_line, timeline_rows, traffic_sentence
from mmcalib.result.traffic import ServedTraffic, TimelineStep, TrafficFigures

# (words, field of a step, colour): each is above the next.
_SERIES = (
    ("highest within the step", "peak_bytes", "var(--accent)"),
    ("held between steps", "held_bytes", "var(--ink)"),
    ("kept alive by the encoder cache", "alive_bytes", "var(--ink-3)"),
)


def traffic(served: ServedTraffic) -> PageFigure:
    """The timeline of the calibrated configuration."""
    found = served.calibrated
    most = max(found.peak_bytes, found.reserved_bytes) / wording.GIB * 1.15 or 1.0
    x = {
        "field": "step",
        "type": "quantitative",
        "axis": {"title": "step of the engine", "labelExpr": SHORT, "grid": False, "tickCount": 6},
        "scale": {"domain": [0, max(found.steps, 1)], "nice": False},
    }
    y = {
        "field": "gib",
        "type": "quantitative",
        "axis": upright("above the loaded model, GiB"),
        "scale": {"domain": [0, most], "nice": False},
    }

    def layers(canvas: Canvas) -> Iterator[Layer]:
        yield from _reserve(found, most, canvas)
        for said, field, colour in _SERIES:
            yield _line(found.timeline, said, field, colour, x, y)

    said = traffic_sentence(found)
    return PageFigure(
        key="traffic",
        title=f"{wording.number(found.requests)} requests on {served.gpu}",
        summary=said,
        drawing=draw(layers, f"Memory of each step while serving. {said}"),
        labels=(served.label,),
        head=HEAD,
        rows=list(timeline_rows(found)),
        legend=[("chosen", _SERIES[0][0]), ("line", _SERIES[1][0]), ("faint", _SERIES[2][0])],
        notes=[
            *([f"{highest_line(found.highest)}."] if found.highest else []),
            *(f"Assumed: {one}." for one in served.assumptions),
        ],
    )


def _reserve(found: TrafficFigures, most: float, canvas: Canvas) -> Iterator[Layer]:
    reserved = found.reserved_bytes / wording.GIB
    height = canvas.height_px * (1 - reserved / most)
    yield {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "color": "var(--ink)", "strokeDash": [5, 4], "aria": False},
        "encoding": {
            "y": {"value": height},
            "x": {"value": 0},
            "x2": {"value": canvas.width_px},
        },
    }
    words = f"reserved at startup {wording.gib(found.reserved_bytes)}"
    yield from text(words, canvas.width_px, height - 10, "right", "var(--ink)")


def _line(
    timeline: list[TimelineStep], said: str, field: str, colour: str, x: Layer, y: Layer
) -> Layer:
    values = [
        {"step": one.step, "gib": getattr(one, field) / wording.GIB, "tip": _tip(one, said, field)}
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


def _tip(one: TimelineStep, said: str, field: str) -> str:
    return f"step {wording.number(one.step)}: {wording.gib(getattr(one, field))} {said}"
