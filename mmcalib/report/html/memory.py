"""Charts of memory: what startup reserves, what serving takes, what the processor cache saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmcalib.checks.catalogue import PREDICTION
from mmcalib.domain.traffic import HighestStep
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.report import rows
from mmcalib.report.html.canvas import (
    ROW_PX,
    SHORT,
    TIP,
    Canvas,
    Layer,
    PageFigure,
    colours_of,
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
from mmcalib.results.calibration import CalibrationDocument, ProcessorCache
from mmcalib.results.memory import Memory, ServedTraffic, TimelineStep, TrafficFigures
from mmcalib.text import GIB, gib, number, plain, share

_BAR_ROW_PX, _MEMORY_BAR_PX = 58, 26
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


def _segments(parts: Sequence[BarPart], bars: Sequence[str], x: Layer) -> Layer:
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
    return layer(
        values,
        {"type": "rect", "stroke": "var(--paper)", "strokeWidth": 1},
        x=x,
        x2={"field": "end"},
        y={"field": "row", "type": "quantitative", "scale": None, "axis": None},
        y2={"field": "under"},
        fill=colours_of("colour", colours, colours),
        description=TIP,
    )


def _words(
    parts: Sequence[BarPart], bars: Sequence[tuple[str, Memory]], scale: float
) -> Iterator[Layer]:
    """Above each bar its name and what is missing; sizes within parts that are wide enough."""
    for row, (name, one) in enumerate(bars):
        short = one.kv_cache_bytes is not None and one.kv_cache_bytes < 0
        words = f"{name}: {gib(-(one.kv_cache_bytes or 0))} short" if short else name
        yield from text(words, 0, _row_y(row) + 13, "left", "var(--bad)" if short else "var(--ink)")
    names = [name for name, _ in bars]
    for part in parts:
        start, end = part.start / GIB * scale, part.end / GIB * scale
        if end - start >= _LABEL_PX:
            y = _row_y(names.index(part.bar)) + _NAME_PX + _MEMORY_BAR_PX / 2 + 1
            size, colour = f"{(part.end - part.start) / GIB:.2f}", f"var(--on-{part.colour})"
            yield from text(size, (start + end) / 2, y, "center", colour, weight=500, halo=False)


def _row_y(row: int) -> int:
    return _TOP_PX + row * _BAR_ROW_PX


_PARTS = (
    ("weights", "weights_bytes", "part-weights"),
    ("buffers", "buffers_bytes", "part-buffers"),
    ("activation peak", "activation_peak_bytes", "part-activation"),
    ("full encoder cache, of the peak", "encoder_cache_bytes", "part-cache"),
    ("outside torch", "non_torch_bytes", "part-outside"),
    ("CUDA graphs", "cudagraph_bytes", "part-graphs"),
    ("KV cache", "kv_cache_bytes", "part-kv"),
)


def memory(calibration: CalibrationDocument) -> PageFigure | None:
    """The bars, or None where nothing about memory is known."""
    measured = calibration.memory.measured
    bars = [(one.name, one.memory) for one in rows.columns(calibration)]
    if measured is not None:
        where = f" on {calibration.startup.device}" if calibration.startup else ""
        bars.append((f"measured{where}", measured))
    parts = [part for name, one in bars for part in _parts_of(name, one)]
    if not parts:
        return None
    names = [name for name, _ in bars]
    calibrated = calibration.memory.calibrated
    total, requested = calibrated.total_bytes, calibrated.requested_bytes
    most = max([total or 0, *(part.end for part in parts)]) / GIB * 1.02
    x = linear_axis("start", 0, most, {"title": "GiB", "grid": True, "tickCount": 6, "zindex": 0})
    limits = (("GPU", total, "var(--ink)"), ("vLLM may use", requested, "var(--ink-2)"))
    lines = [(f"{name} {gib(nbytes)}", nbytes / GIB, c) for name, nbytes, c in limits if nbytes]

    def layers(canvas: Canvas) -> Iterator[Layer]:
        yield _segments(parts, names, x)
        yield from _words(parts, bars, canvas.width_px / most)
        yield from reference(lines, canvas, x)

    before, after = map(rows.kv_cache, (calibration.memory.default, calibrated))
    summary = f"KV cache by default: {before}. Calibrated: {after}."
    if calibrated.kv_cache_bytes is None:
        summary = (
            "What the engine start measured; no GPU was rehearsed, so its KV cache is not known."
        )
    labels = {
        rows.label_of(one, field)
        for _, one in bars
        for _, field, _ in _PARTS
        if getattr(one, field) is not None
    }
    drawn = {part.colour for part in parts}
    fields = [("GPU in all", "total_bytes"), ("vLLM may use", "requested_bytes")]
    fields += [(name, field) for name, field, _ in _PARTS]
    return PageFigure(
        key="memory",
        title=f"Memory{rows.on_gpu(calibrated)}",
        summary=summary,
        drawing=draw(layers, f"Memory. {summary}", height_px=_row_y(len(bars)) - 8, left_px=16),
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
    """The parts that are known, one behind the other; nothing for a KV cache below zero."""
    start = 0
    for name, field, colour in _PARTS:
        size = getattr(one, field)
        if size is None or size <= 0 or field == "encoder_cache_bytes":
            continue
        label = rows.label_of(one, field)
        cache = one.encoder_cache_bytes if field == "activation_peak_bytes" else None
        inner = min(cache or 0, size)
        if inner:
            cached = one.labels.get("encoder_cache_bytes", label)
            words = "full encoder cache, of the activation peak"
            yield BarPart(bar, words, "part-cache", start + size - inner, start + size, cached)
        yield BarPart(bar, name, colour, start, start + size - inner, label)
        start += size


def _cell(one: Memory, field: str) -> str:
    value = getattr(one, field)
    return "—" if value is None else f"{gib(value)} ({rows.label_of(one, field)})"


def _memory_notes(calibration: CalibrationDocument) -> Iterator[str]:
    found = calibration.memory
    if found.calibrated.kv_cache_bytes is None:
        yield "mmcalib run --gpu NAME predicts the memory of a GPU without having it."
    for one in rows.columns(calibration):
        if one.memory.note:
            yield f"{one.name}: {plain(one.memory.note).rstrip('.')}."
    if found.measured is not None and found.measured.note:
        yield f"Of the engine start: {plain(found.measured.note).rstrip('.')}."
    for check in PREDICTION.among(calibration.checks):
        yield f"Predicted against measured: {plain(check.detail)}."


# (words, field of a step, colour): each is above the next.
_SERIES = (
    ("highest within the step", "peak_bytes", "var(--accent)"),
    ("held between steps", "held_bytes", "var(--ink)"),
    ("kept alive by the encoder cache", "alive_bytes", "var(--ink-3)"),
)
# Tensors of the highest step that are named beside the pointer.
_NAMED_TENSORS = 5
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
    if problem := plain(served.default_problem).rstrip("."):
        yield f"The default is not served: {problem}."
    if found.highest:
        yield f"{rows.highest_line(found)}."
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
    words = f"{words} {gib(found.reserved_bytes)}"
    yield from text(words, canvas.width_px, y + (10 if below else -10), "right", colour)


def _line(timeline: list[TimelineStep], field: str, colour: str, x: Layer, y: Layer) -> Layer:
    values = [{"step": one.step, "gib": getattr(one, field) / GIB} for one in timeline]
    return trace(values, x, y, "step", color=colour, interpolate="step-after")


def _highest(found: TrafficFigures, highest: HighestStep, x: Layer, y: Layer) -> Layer:
    alive = map(rows.tensor_cells, highest.largest[:_NAMED_TENSORS])
    tip = [
        f"step {number(highest.number)}: {gib(found.peak_bytes)}, the highest",
        *(f"{size} {made}" for size, _, _, made in alive),
    ]
    at = {"step": highest.number, "gib": found.peak_bytes / GIB, "tip": plain(" · ".join(tip))}
    return marks([at], {"size": 60, "fill": "var(--accent)"}, x, y)


def cache(found: ProcessorCache) -> PageFigure | None:
    """The curve, or None where nothing repeats."""
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
    x = log_axis("size", "size of the cache, GiB", low, high)
    x["axis"]["labelExpr"] = "format(datum.value, '~g')"
    ends = [*zip(sizes, (rate for _, rate in found.curve), strict=True)]
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
    if found.wanted is not None:
        size_gib, rate = found.wanted
        wanted = f"{share(rate)} would hit with {size_gib:g} GiB"
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
