"""Traffic, cache and encoder charts."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.report import rows
from mmcalib.report.html.canvas import (
    ROW_PX,
    SHORT,
    Canvas,
    Layer,
    PageFigure,
    draw,
    layer,
    linear_axis,
    log_axis,
    marks,
    reference,
    text,
    trace,
    upright,
)
from mmcalib.results.calibration import ProcessorCache
from mmcalib.results.memory import HighestTrafficStep, ServedTraffic, TimelineStep, TrafficFigures
from mmcalib.text import GIB, gib, number, plain, share

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
    steps = {"title": "step of the engine", "labelExpr": SHORT, "grid": False, "tickCount": 6}
    x = linear_axis("step", 0, max(longest, 1), steps)
    y = linear_axis("gib", 0, most, upright("above the loaded model, GiB"))

    def layers(canvas: Canvas) -> Iterator[Layer]:
        if default is not None:
            apart = abs(default.reserved_bytes - found.reserved_bytes) / GIB
            near = apart / most * canvas.height_px < ROW_PX
            yield from _reserve(default, most, canvas, "by default", _DEFAULT[-1], below=near)
            yield _line(default.timeline, *_DEFAULT, x, y)
        yield from _reserve(found, most, canvas, "reserved at startup", "var(--ink)")
        for words, field, colour in _SERIES:
            yield _line(found.timeline, words, field, colour, x, y)
        if found.highest:
            yield _highest(found, found.highest, x, y)

    sentence = rows.traffic_sentence(found)
    legend = [("chosen", _SERIES[0][0]), ("line", _SERIES[1][0]), ("faint", _SERIES[2][0])]
    if default is not None:
        legend.append(("default", _DEFAULT[0]))
    return PageFigure(
        key="traffic",
        title=f"{number(found.requests)} requests on {served.gpu}",
        summary=sentence,
        drawing=draw(layers, f"Memory of each step while serving. {sentence}"),
        labels=(served.label,),
        head=rows.TIMELINE_HEAD,
        rows=rows.timeline_rows(found),
        legend=legend,
        notes=list(_traffic_notes(served)),
    )


def _traffic_notes(served: ServedTraffic) -> Iterator[str]:
    found, default = served.calibrated, served.default
    if default is not None:
        yield (
            f"By default: {number(default.steps)} steps ({number(found.steps)} calibrated), "
            f"{number(default.encoder_waits)} held up by the encoder "
            f"({number(found.encoder_waits)}), "
            f"{number(default.preemptions)} preempted ({number(found.preemptions)}), "
            f"highest {gib(default.peak_bytes)} of {gib(default.reserved_bytes)} reserved "
            f"({gib(found.peak_bytes)} of {gib(found.reserved_bytes)})."
        )
    if served.default_problem:
        yield f"The default is not served: {plain(served.default_problem).rstrip('.')}."
    if found.highest:
        yield f"{rows.highest_line(found.highest)}."
    yield from (f"Assumed: {one}." for one in served.assumptions)


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
    y = canvas.height_px * (1 - found.reserved_bytes / GIB / most)
    rule = {"type": "rule", "color": colour, "strokeDash": [5, 4], "aria": False}
    yield layer([], rule, y={"value": y}, x={"value": 0}, x2={"value": canvas.width_px})
    said = f"{words} {gib(found.reserved_bytes)}"
    yield from text(said, canvas.width_px, y + (10 if below else -10), "right", colour)


def _line(
    timeline: list[TimelineStep], words: str, field: str, colour: str, x: Layer, y: Layer
) -> Layer:
    values = [{"step": one.step, "gib": getattr(one, field) / GIB} for one in timeline]
    return trace(values, x, y, "step", color=colour, interpolate="step-after")


def _highest(found: TrafficFigures, highest: HighestTrafficStep, x: Layer, y: Layer) -> Layer:
    """The highest step, and what lived in it."""
    alive = map(rows.tensor_cells, highest.largest[:_NAMED])
    tip = [
        f"step {number(highest.number)}: {gib(found.peak_bytes)}, the highest",
        *(f"{size} {made}" for size, _, _, made in alive),
    ]
    at = {"step": highest.number, "gib": found.peak_bytes / GIB, "tip": plain(" · ".join(tip))}
    return marks([at], {"size": 60, "fill": "var(--accent)"}, x, y)


_DEFAULT_GIB = float(PROCESSOR_CACHE_GIB)


def cache(found: ProcessorCache) -> PageFigure | None:
    """The curve, or None where nothing repeats."""
    if not found.curve:
        return None
    sizes = [point.capacity_bytes / GIB for point in found.curve]
    chosen = found.mm_processor_cache_gb
    lines = [(f"vLLM's default {_DEFAULT_GIB:g} GiB", _DEFAULT_GIB, "var(--ink-3)")]
    if chosen:
        lines.insert(0, (f"chosen {chosen:g} GiB", chosen, "var(--accent-ink)"))
    shown = [*sizes, *(value for _, value, _ in lines)]
    low, high = min(shown) / 1.4, max(shown) * 1.4
    x = log_axis("size", "size of the cache, GiB", low, high)
    x["axis"]["labelExpr"] = "format(datum.value, '~g')"
    ends = [*zip(sizes, (point.hit_rate for point in found.curve), strict=True)]
    most = max(found.most_hit_rate, ends[-1][1])

    # A round end for the axis.
    top = next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if most <= end), 1.0)
    rates = {**upright("share of items that hit"), "format": ".0%"}
    steps = [{"size": low, "rate": 0}, *({"size": s, "rate": r} for s, r in ends)]
    steps.append({"size": high, "rate": ends[-1][1]})
    points = [{"size": s, "rate": r, "tip": f"{s:.3g} GiB · {share(r)} hit"} for s, r in ends]

    def layers(canvas: Canvas) -> Iterator[Layer]:
        y = linear_axis("rate", 0, top, rates, range=[canvas.height_px, 44])
        colour = "var(--accent)"
        yield trace(steps, x, y, color=colour, strokeWidth=2, interpolate="step-after")
        yield marks(points, {"size": 50, "fill": colour}, x, y)
        yield from reference(lines, canvas, x)

    summary = (
        f"Of {number(found.accesses)} uses of an item in {number(found.requests)} "
        f"requests, {share(found.hit_rate)} hit with {chosen:g} GiB; "
        f"{share(found.most_hit_rate)} is the most that any size can give."
    )
    notes = [f"In both processes of a server it may hold {gib(found.total_bytes)} of RAM."]
    if found.wanted_gb is not None and found.wanted_gb > found.mm_processor_cache_gb:
        # What a larger cache than is allowed would bring.
        wanted = f"{share(found.wanted_hit_rate)} would hit with {found.wanted_gb:g} GiB"
        notes.append(f"{wanted} in each process, more than is allowed.")
    if not found.complete:
        notes.append("The request log was read in part only.")
    return PageFigure(
        key="cache",
        title="Processor cache",
        summary=summary,
        drawing=draw(layers, f"Hit rate of the processor cache. {summary}", height_px=220),
        labels=(found.label,),
        head=("size", "hits"),
        rows=[(f"{s:.3g} GiB", share(r)) for s, r in ends],
        notes=notes,
    )
