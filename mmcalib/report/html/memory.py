"""Charts of memory at startup, memory while serving, and hits of the processor cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmcalib.checks.catalogue import PREDICTION
from mmcalib.domain.traffic import HighestStep
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.report import rows
from mmcalib.report.html import canvas as chart
from mmcalib.results.calibration import CalibrationDocument, ProcessorCache
from mmcalib.results.memory import Memory, ServedTraffic, TimelineStep, TrafficFigures
from mmcalib.text import GIB, gib, number, printable, share

_BAR_ROW_PX, _MEMORY_BAR_PX = 58, 26
# Two rows of words above the first bar, one above each.
_TOP_PX = 2 * chart.ROW_PX + 6
_NAME_PX = 24
# A label inside a part needs this much of it.
_LABEL_PX = 60


@dataclass(frozen=True, slots=True)
class BarPart:
    """One piece of one bar, from `start` to `end` in bytes."""

    bar: str
    name: str
    colour: str
    start: int
    end: int
    label: str


def _segments(parts: Sequence[BarPart], bars: Sequence[str], x: chart.Layer) -> chart.Layer:
    colours = list(dict.fromkeys(part.colour for part in parts))
    values = [
        {
            "row": _row_y(bars.index(part.bar)) + _NAME_PX,
            "under": _row_y(bars.index(part.bar)) + _NAME_PX + _MEMORY_BAR_PX,
            "start": part.start / GIB,
            "end": part.end / GIB,
            "colour": part.colour,
            "tip": f"{part.bar} · {part.name} {gib(part.end - part.start)} · {part.label}",
        }
        for part in parts
    ]
    return chart.layer(
        values,
        {"type": "rect", "stroke": "var(--paper)", "strokeWidth": 1},
        x=x,
        x2={"field": "end"},
        y={"field": "row", "type": "quantitative", "scale": None, "axis": None},
        y2={"field": "under"},
        fill=chart.colours_of("colour", colours, colours),
        description=chart.TIP,
    )


def _words(
    parts: Sequence[BarPart], bars: Sequence[tuple[str, Memory]], scale: float
) -> Iterator[chart.Layer]:
    """Write each bar's name and shortfall above it, and sizes into parts that are wide enough."""
    for row, (name, one) in enumerate(bars):
        short = one.kv_cache_bytes is not None and one.kv_cache_bytes < 0
        words = f"{name}: {gib(-(one.kv_cache_bytes or 0))} short" if short else name
        yield from chart.text(
            words, 0, _row_y(row) + 13, "left", "var(--bad)" if short else "var(--ink)"
        )
    names = [name for name, _ in bars]
    for part in parts:
        start, end = part.start / GIB * scale, part.end / GIB * scale
        if end - start >= _LABEL_PX:
            y = _row_y(names.index(part.bar)) + _NAME_PX + _MEMORY_BAR_PX / 2 + 1
            size, colour = f"{(part.end - part.start) / GIB:.2f}", f"var(--on-{part.colour})"
            yield from chart.text(
                size, (start + end) / 2, y, "center", colour, weight=500, halo=False
            )


def _row_y(row: int) -> int:
    return _TOP_PX + row * _BAR_ROW_PX


_PARTS = (
    ("weights", "weights_bytes", "part-weights"),
    ("buffers", "buffers_bytes", "part-buffers"),
    ("activation peak", "activation_peak_bytes", "part-activation"),
    ("outside torch", "non_torch_bytes", "part-outside"),
    ("CUDA graphs", "cudagraph_bytes", "part-graphs"),
    ("KV cache", "kv_cache_bytes", "part-kv"),
)


def memory(calibration: CalibrationDocument) -> chart.PageFigure | None:
    """Draw the bars; None if no memory is known."""
    measured, calibrated = calibration.memory.measured, calibration.memory.calibrated
    bars = [(one.name, one.memory) for one in rows.columns(calibration)]
    if measured is not None and calibrated.kv_cache_bytes is None:
        where = f" on {calibration.startup.device}" if calibration.startup else ""
        bars.append((f"measured{where}", measured))
    parts = [part for name, one in bars for part in _parts_of(name, one)]
    if not parts:
        return None
    names = [name for name, _ in bars]
    total, requested = calibrated.total_bytes, calibrated.requested_bytes
    most = max([total or 0, *(part.end for part in parts)]) / GIB * 1.02
    x = chart.linear_axis(
        "start", 0, most, {"title": "GiB", "grid": True, "tickCount": 6, "zindex": 0}
    )
    limits = (("GPU", total, "var(--ink)"), ("vLLM may use", requested, "var(--ink-2)"))
    lines = [(f"{name} {gib(nbytes)}", nbytes / GIB, c) for name, nbytes, c in limits if nbytes]

    def layers(canvas: chart.Canvas) -> Iterator[chart.Layer]:
        yield _segments(parts, names, x)
        yield from _words(parts, bars, canvas.width_px / most)
        yield from chart.reference(lines, canvas, x)

    before, after = map(rows.kv_cache, (calibration.memory.default, calibrated))
    summary = f"KV cache with vLLM's defaults: {before}. Tuned: {after}."
    if calibrated.kv_cache_bytes is None:
        summary = "Measured by the engine start. The KV cache is unknown, because no GPU was named."
    labels = {
        rows.label_of(one, field)
        for _, one in bars
        for _, field, _ in _PARTS
        if getattr(one, field) is not None
    }
    drawn = {part.colour for part in parts}
    fields = [("GPU total", "total_bytes"), ("vLLM may use", "requested_bytes")]
    fields += [(name, field) for name, field, _ in _PARTS]
    fields += [("full encoder cache, part of the peak", "encoder_cache_bytes")]
    return chart.PageFigure(
        key="memory",
        title=f"Memory{rows.on_gpu(calibrated)}",
        summary=summary,
        drawing=chart.draw(
            layers, f"Memory. {summary}", height_px=_row_y(len(bars)) - 8, left_px=16
        ),
        labels=sorted(labels),
        head=("part", *names),
        rows=[
            (name, *(_cell(one, field) for _, one in bars))
            for name, field in fields
            if any(getattr(one, field) is not None for _, one in bars)
        ],
        legend=[(colour, name) for name, _, colour in _PARTS if colour in drawn],
        notes=list(_memory_notes(calibration)),
    )


def _parts_of(bar: str, one: Memory) -> Iterator[BarPart]:
    """Yield the known parts end to end; a KV cache below zero has no part."""
    start = 0
    for name, field, colour in _PARTS:
        size = getattr(one, field)
        if size is not None and size > 0:
            label = rows.label_of(one, field)
            yield BarPart(bar, name, colour, start, start + size, label)
            start += size


def _cell(one: Memory, field: str) -> str:
    value = getattr(one, field)
    return "—" if value is None else f"{gib(value)} ({rows.label_of(one, field)})"


def _memory_notes(calibration: CalibrationDocument) -> Iterator[str]:
    if calibration.memory.calibrated.kv_cache_bytes is None:
        yield "mmcalib run --gpu NAME predicts the memory of a GPU that you don't have."
    for one in rows.columns(calibration):
        # vLLM's messages go on with advice; the first sentence is the cause.
        if cause := printable(one.memory.note).split(". ")[0].rstrip("."):
            yield f"{one.name}: {cause}."
    for check in calibration.checks:
        if check.name == PREDICTION.name:
            yield f"Engine start on this machine: {printable(check.detail)}."


# (words, field of a step, colour): each is above the next.
_SERIES = (
    ("peak of the step", "peak_bytes", "var(--accent)"),
    ("between steps", "held_bytes", "var(--ink)"),
    ("encoder cache", "alive_bytes", "var(--ink-3)"),
)
# The tip of the highest step names this many tensors.
_NAMED_TENSORS = 5
_DEFAULT = ("peak of the step, vLLM defaults", "peak_bytes", "var(--warn)")


def traffic(served: ServedTraffic) -> chart.PageFigure:
    """Draw memory by step of the tuned configuration, over that of vLLM's defaults."""
    found, default = served.calibrated, served.default
    both = [found] if default is None else [found, default]
    most = max(max(one.peak_bytes, one.reserved_bytes) for one in both) / GIB * 1.15 or 1.0
    longest = max(one.steps for one in both)
    steps = {"title": "step of the engine", "labelExpr": chart.SHORT, "grid": False, "tickCount": 6}
    x = chart.linear_axis("step", 0, max(longest, 1), steps)
    y = chart.linear_axis("gib", 0, most, chart.upright("above the loaded model, GiB"))

    def layers(canvas: chart.Canvas) -> Iterator[chart.Layer]:
        if default is not None:
            apart = abs(default.reserved_bytes - found.reserved_bytes) / GIB
            near = apart / most * canvas.height_px < chart.ROW_PX
            yield from _reserve(default, most, canvas, "vLLM defaults", _DEFAULT[-1], below=near)
            yield _line(default.timeline, *_DEFAULT[1:], x, y)
        yield from _reserve(found, most, canvas, "reserved at startup", "var(--ink)")
        for _, field, colour in _SERIES:
            yield _line(found.timeline, field, colour, x, y)
        if found.highest:
            yield _highest(found, found.highest, x, y)

    sentence = rows.traffic_sentence(found)
    legend = [("chosen", _SERIES[0][0]), ("line", _SERIES[1][0]), ("faint", _SERIES[2][0])]
    if default is not None:
        legend.append(("default", _DEFAULT[0]))
    return chart.PageFigure(
        key="traffic",
        title=f"{number(found.requests)} requests on {served.gpu}",
        summary=sentence,
        drawing=chart.draw(layers, f"Memory of each step while serving. {sentence}"),
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
            f"With vLLM's defaults: {number(default.steps)} steps (tuned {number(found.steps)}), "
            f"{number(default.encoder_waits)} waited for the encoder "
            f"({number(found.encoder_waits)}), "
            f"{number(default.preemptions)} preempted ({number(found.preemptions)}), "
            f"peak {gib(default.peak_bytes)} of {gib(default.reserved_bytes)} reserved "
            f"({gib(found.peak_bytes)} of {gib(found.reserved_bytes)})."
        )
    if problem := printable(served.default_problem).rstrip("."):
        yield f"vLLM's defaults cannot serve: {problem.split('. ')[0]}."
    if found.highest:
        yield f"{rows.highest_line(found)}."
    yield from (f"Assumed: {one}." for one in served.assumptions)


def _reserve(
    found: TrafficFigures,
    most: float,
    canvas: chart.Canvas,
    words: str,
    colour: str,
    *,
    below: bool = False,
) -> Iterator[chart.Layer]:
    """Draw a horizontal line with its words above it, or `below` it if they would overlap."""
    y = canvas.height_px * (1 - found.reserved_bytes / GIB / most)
    rule = {"type": "rule", "color": colour, "strokeDash": [5, 4], "aria": False}
    yield chart.layer([], rule, y={"value": y}, x={"value": 0}, x2={"value": canvas.width_px})
    words = f"{words} {gib(found.reserved_bytes)}"
    yield from chart.text(words, canvas.width_px, y + (10 if below else -10), "right", colour)


def _line(
    timeline: list[TimelineStep], field: str, colour: str, x: chart.Layer, y: chart.Layer
) -> chart.Layer:
    values = [{"step": one.step, "gib": getattr(one, field) / GIB} for one in timeline]
    return chart.trace(values, x, y, "step", color=colour, interpolate="step-after")


def _highest(
    found: TrafficFigures, highest: HighestStep, x: chart.Layer, y: chart.Layer
) -> chart.Layer:
    alive = map(rows.tensor_cells, highest.largest[:_NAMED_TENSORS])
    tip = [
        f"step {number(highest.number)}: {gib(found.peak_bytes)}, the highest peak",
        *(f"{size} {made}" for size, _, _, made in alive),
    ]
    at = {"step": highest.number, "gib": found.peak_bytes / GIB, "tip": printable(" · ".join(tip))}
    return chart.marks([at], {"size": 60, "fill": "var(--accent)"}, x, y)


def cache(found: ProcessorCache) -> chart.PageFigure | None:
    """Draw the hit rate by cache size; None if nothing repeats."""
    if not found.curve:
        return None
    sizes = [capacity_bytes / GIB for capacity_bytes, _ in found.curve]
    chosen = found.mm_processor_cache_gb
    default = float(PROCESSOR_CACHE_GIB)
    lines = [(f"vLLM's default {default:g} GiB", default, "var(--ink-3)")]
    if chosen:
        lines.insert(0, (f"chosen {chosen:g} GiB", chosen, "var(--accent-ink)"))
    shown = [*sizes, *(value for _, value, _ in lines)]
    low, high = min(shown) / 1.4, max(shown) * 1.4
    x = chart.log_axis("size", "size of the cache, GiB", low, high)
    x["axis"]["labelExpr"] = "format(datum.value, '~g')"
    ends = [*zip(sizes, (rate for _, rate in found.curve), strict=True)]
    most = max(found.max_hit_rate, ends[-1][1])
    # A round end for the axis.
    top = next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if most <= end), 1.0)
    rates = {**chart.upright("hit rate"), "format": ".0%"}
    steps = [{"size": low, "rate": 0}, *({"size": s, "rate": r} for s, r in ends)]
    steps.append({"size": high, "rate": ends[-1][1]})
    points = [{"size": s, "rate": r, "tip": f"{s:.3g} GiB · {share(r)} hit"} for s, r in ends]

    def layers(canvas: chart.Canvas) -> Iterator[chart.Layer]:
        y = chart.linear_axis("rate", 0, top, rates, range=[canvas.height_px, 44])
        colour = "var(--accent)"
        yield chart.trace(steps, x, y, color=colour, strokeWidth=2, interpolate="step-after")
        yield chart.marks(points, {"size": 50, "fill": colour}, x, y)
        yield from chart.reference(lines, canvas, x)

    summary = (
        f"With {chosen:g} GiB, {share(found.hit_rate)} of {number(found.accesses)} item uses in "
        f"{number(found.requests)} requests hit. No size exceeds {share(found.max_hit_rate)}."
    )
    notes = [f"A server's processes may hold up to {gib(found.total_bytes)} of RAM together."]
    if found.wanted is not None:
        size_gib, rate = found.wanted
        wanted = f"{share(rate)} would hit with {size_gib:g} GiB in each process"
        notes.append(f"{wanted}, which exceeds the limit that you gave.")
    if not found.complete:
        notes.append("mmcalib read only a part of the request log.")
    return chart.PageFigure(
        key="cache",
        title="Processor cache",
        summary=summary,
        drawing=chart.draw(layers, f"Hit rate of the processor cache. {summary}", height_px=220),
        labels=(found.label,),
        head=("size", "hits"),
        rows=[(f"{s:.3g} GiB", share(r)) for s, r in ends],
        notes=notes,
    )
