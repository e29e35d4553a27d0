"""Traffic, cache and encoder charts."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import text as wording
from mmcalib.domain.traffic import HighestStep
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.report.html.canvas import (
    ROW_PX,
    SHORT,
    Canvas,
    Layer,
    PageFigure,
    draw,
    log_axis,
    reference,
    text,
    upright,
)
from mmcalib.report.rows import tensor_cells
from mmcalib.report.terminal_memory import HEAD, highest_line, timeline_rows, traffic_sentence
from mmcalib.results.calibration import ProcessorCache
from mmcalib.results.memory import ServedTraffic, TimelineStep, TrafficFigures
from mmcalib.text import GIB

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
            *([f"{highest_line(found)}."] if found.highest else []),
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


def _highest(found: TrafficFigures, highest: HighestStep, x: Layer, y: Layer) -> Layer:
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


_DEFAULT_GIB = float(PROCESSOR_CACHE_GIB)


def cache(found: ProcessorCache) -> PageFigure | None:
    """The curve, or None where nothing repeats."""
    if not found.curve:
        return None
    sizes = [capacity_bytes / GIB for capacity_bytes, _ in found.curve]
    chosen = found.mm_processor_cache_gb
    lines = [(f"vLLM's default {_DEFAULT_GIB:g} GiB", _DEFAULT_GIB, "var(--ink-3)")]
    if chosen:
        lines.insert(0, (f"chosen {chosen:g} GiB", chosen, "var(--accent-ink)"))
    shown = [*sizes, *(value for _, value, _ in lines)]
    low, high = min(shown) / 1.4, max(shown) * 1.4
    x = log_axis("size", "size of the cache, GiB", low, high)
    x["axis"]["labelExpr"] = "format(datum.value, '~g')"
    ends = [*zip(sizes, (rate for _, rate in found.curve), strict=True)]
    most = max(found.most_hit_rate, ends[-1][1])

    def layers(canvas: Canvas) -> Iterator[Layer]:
        y = {
            "field": "rate",
            "type": "quantitative",
            "axis": {**upright("share of items that hit"), "format": ".0%"},
            "scale": {"domain": [0, _ceiling(most)], "range": [canvas.height_px, 44]},
        }
        steps = [{"size": low, "rate": 0}, *({"size": s, "rate": r} for s, r in ends)]
        steps.append({"size": high, "rate": ends[-1][1]})
        base = {"x": x, "y": y}
        yield {
            "data": {"values": steps},
            "mark": {
                "type": "line",
                "interpolate": "step-after",
                "color": "var(--accent)",
                "strokeWidth": 2,
                "aria": False,
            },
            "encoding": base,
        }
        yield {
            "data": {
                "values": [
                    {"size": s, "rate": r, "tip": f"{s:.3g} GiB · {wording.share(r)} hit"}
                    for s, r in ends
                ]
            },
            "mark": {
                "type": "point",
                "filled": True,
                "size": 50,
                "fill": "var(--accent)",
                "stroke": "var(--paper)",
                "opacity": 1,
            },
            "encoding": {**base, "description": {"field": "tip"}},
        }
        yield from reference(lines, canvas, x)

    summary = (
        f"Of {wording.number(found.accesses)} uses of an item in {wording.number(found.requests)} "
        f"requests, {wording.share(found.hit_rate)} hit with {chosen:g} GiB; "
        f"{wording.share(found.most_hit_rate)} is the most that any size can give."
    )
    return PageFigure(
        key="cache",
        title="Processor cache",
        summary=summary,
        drawing=draw(layers, f"Hit rate of the processor cache. {summary}", height_px=220),
        labels=(found.label,),
        head=("size", "hits"),
        rows=[(f"{s:.3g} GiB", wording.share(r)) for s, r in ends],
        notes=[
            f"In both processes of a server it may hold {wording.gib(found.total_bytes)} of RAM.",
            *_more(found),
            *([] if found.complete else ["The request log was read in part only."]),
        ],
    )


def _more(found: ProcessorCache) -> Iterator[str]:
    """What a larger cache than is allowed would bring."""
    if found.wanted is not None:
        size_gib, rate = found.wanted
        size = f"{size_gib:g} GiB in each process"
        yield f"{wording.share(rate)} would hit with {size}, more than is allowed."


def _ceiling(rate: float) -> float:
    """A round end for the axis above `rate`."""
    return next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if rate <= end), 1.0)
