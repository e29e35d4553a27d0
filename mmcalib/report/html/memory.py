"""Charts of memory at startup, memory while serving, and hits of the processor cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmcalib.checks.catalogue import PREDICTION
from mmcalib.domain.traffic import HighestStep
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.report import rows
from mmcalib.report.html import canvas as chart
from mmcalib.results.calibration import CalibrationDocument, ProcessorCache
from mmcalib.results.memory import Memory, ServedTraffic, TimelineStep, TrafficFigures
from mmcalib.text import GIB, gib, number, remaining, share

_BAR_ROW_PX, _MEMORY_BAR_PX = 58, 26
# Two rows of words above the first bar, one above each.
_TOP_PX = 2 * chart.ROW_PX + 6
_NAME_PX = 24
# A label inside a part needs this much of it.
_LABEL_PX = 60


def _segments(parts: Sequence[chart.Layer]) -> Iterator[chart.Layer]:
    """Draw the parts, and write their sizes into those that are wide enough."""
    bar, fill = {"type": "rect", "strokeWidth": 1}, {"field": "fill", "scale": None}
    yield chart.marks(parts, bar, x2={"field": "x2"}, y2={"field": "y2"}, fill=fill)
    words = f"scale('x', datum.x2) - scale('x', datum.x) < {_LABEL_PX} ? '' : datum.words"
    (sizes,) = chart.text(parts, words=words, weight=500, halo=False, x={"field": "middle"})
    sizes["mark"] |= {"align": "center", "dx": 0, "dy": _MEMORY_BAR_PX / 2 + 1}
    yield sizes


def _names(bars: Sequence[tuple[str, Memory]]) -> Iterator[chart.Layer]:
    """Write each bar's name and shortfall above it."""
    values = []
    for row, (name, one) in enumerate(bars):
        short = (one.kv_cache_bytes or 0) < 0
        words = f"{name}: {remaining(one.kv_cache_bytes)}" if short else name
        colour = "var(--bad)" if short else "var(--ink)"
        values.append({"words": words, "colour": colour, "y": _row_y(row) + 13})
    yield from chart.text(values, "false", gap_px=0, x={"value": 0})


def _row_y(row: int) -> int:
    return _TOP_PX + row * _BAR_ROW_PX


# The parts of a bar, and the ends of their colours' names.
_COLOURS = ("weights", "buffers", "activation", "outside", "graphs", "kv")
_PARTS = dict(zip((*rows.PARTS, "kv_cache_bytes"), _COLOURS, strict=True))


def memory(calibration: CalibrationDocument) -> chart.PageFigure | None:
    """Draw the bars; None if no memory is known."""
    measured, calibrated = calibration.memory.measured, calibration.memory.calibrated
    bars = [(one.name, one.memory) for one in rows.columns(calibration)]
    if measured is not None and calibrated.kv_cache_bytes is None:
        where = f" on {calibration.startup.device}" if calibration.startup else ""
        bars.append((f"measured{where}", measured))
    parts = [part for row, (name, one) in enumerate(bars) for part in _parts_of(row, name, one)]
    if not parts:
        return None
    names = [name for name, _ in bars]
    total, requested = calibrated.total_bytes, calibrated.requested_bytes
    most = max([(total or 0) / GIB, *(part["x2"] for part in parts)]) * 1.02
    x = chart.linear_axis(0, most, {"title": "GiB", "grid": True, "tickCount": 6, "zindex": 0})
    limits = (("total", total, "var(--ink)"), ("requested", requested, "var(--ink-2)"))
    lines = [(f"{rows.FIGURES[f'{end}_bytes']} {gib(n)}", n / GIB, c) for end, n, c in limits if n]

    layers = (*_segments(parts), *_names(bars), *chart.reference(lines))
    before, after = map(rows.kv_cache, (calibration.memory.default, calibrated))
    summary = f"KV cache with vLLM's defaults: {before}. Tuned: {after}."
    if calibrated.kv_cache_bytes is None:
        summary = "Measured by the engine start. The KV cache is unknown, because no GPU was named."
    labels = {
        rows.label_of(one, field)
        for _, one in bars
        for field in _PARTS
        if getattr(one, field) is not None
    }
    drawn = {part["fill"] for part in parts}
    return chart.PageFigure(
        key="memory",
        title=f"Memory{rows.on_gpu(calibrated)}",
        summary=summary,
        drawing=chart.draw(
            layers,
            f"Memory. {summary}",
            x,
            chart.PIXELS,
            height_px=_row_y(len(bars)) - 8,
            left_px=16,
        ),
        labels=sorted(labels),
        head=("part", *names),
        rows=[
            (rows.FIGURES[field], *(_cell(one, field) for _, one in bars))
            for field in ("total_bytes", "requested_bytes", *_PARTS, "encoder_cache_bytes")
            if any(getattr(one, field) is not None for _, one in bars)
        ],
        legend=[
            (f"part-{c}", rows.FIGURES[f]) for f, c in _PARTS.items() if f"var(--part-{c})" in drawn
        ],
        notes=list(_memory_notes(calibration)),
    )


def _parts_of(row: int, bar: str, one: Memory) -> Iterator[chart.Layer]:
    """Yield the known parts end to end; a KV cache below zero has no part."""
    start, y = 0, _row_y(row) + _NAME_PX
    for field, colour in _PARTS.items():
        size = getattr(one, field)
        if size is not None and size > 0:
            yield {
                "x": start / GIB,
                "x2": (start + size) / GIB,
                "middle": (start + size / 2) / GIB,
                "y": y,
                "y2": y + _MEMORY_BAR_PX,
                "fill": f"var(--part-{colour})",
                "colour": f"var(--on-part-{colour})",
                "words": f"{size / GIB:.2f}",
                "tip": f"{bar} · {rows.FIGURES[field]} {gib(size)} · {rows.label_of(one, field)}",
            }
            start += size


def _cell(one: Memory, field: str) -> str:
    value = getattr(one, field)
    return "—" if value is None else f"{gib(value)} ({rows.label_of(one, field)})"


def _memory_notes(calibration: CalibrationDocument) -> Iterator[str]:
    if calibration.memory.calibrated.kv_cache_bytes is None:
        yield "mmcalib run --gpu NAME predicts the memory of a GPU that you don't have."
    for one in rows.columns(calibration):
        if one.memory.note:
            yield f"{one.name}: {one.memory.note}."
    for check in calibration.checks:
        if check.name == PREDICTION.name:
            yield f"Measured at the engine start on this machine: {check.detail}."


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
    x = chart.linear_axis(0, max(longest, 1), steps)
    y = chart.linear_axis(0, most, chart.upright("above the loaded model, GiB"))

    layers: list[chart.Layer] = []
    if default is not None:
        apart = abs(default.reserved_bytes - found.reserved_bytes) / GIB
        near = apart / most * chart.HEIGHT_PX < chart.ROW_PX
        layers += _reserve(default, "vLLM defaults", _DEFAULT[-1], below=near)
        layers.append(_line(default.timeline, *_DEFAULT[1:]))
    layers += _reserve(found, "reserved at startup", "var(--ink)")
    layers += [_line(found.timeline, field, colour) for _, field, colour in _SERIES]
    if found.highest:
        layers.append(_highest(found, found.highest))
    sentence = rows.traffic_sentence(found)
    legend = [("chosen", _SERIES[0][0]), ("line", _SERIES[1][0]), ("faint", _SERIES[2][0])]
    if default is not None:
        legend.append(("default", _DEFAULT[0]))
    return chart.PageFigure(
        key="traffic",
        title=f"{number(found.requests)} requests on {served.gpu}",
        summary=sentence,
        drawing=chart.draw(layers, f"Memory of each step while serving. {sentence}", x, y),
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
    if problem := served.default_problem.rstrip("."):
        yield f"vLLM's defaults cannot serve: {problem.split('. ')[0]}."
    if found.highest:
        yield f"{rows.highest_line(found)}."
    yield from (f"Assumed: {one}." for one in served.assumptions)


def _reserve(
    found: TrafficFigures, words: str, colour: str, *, below: bool = False
) -> Iterator[chart.Layer]:
    """Draw a horizontal line with its words above it, or `below` it if they would overlap."""
    words = f"{words} {gib(found.reserved_bytes)}"
    at = {"y": found.reserved_bytes / GIB, "words": words, "colour": colour}
    rule = {"type": "rule", "strokeDash": [5, 4], "aria": False}
    yield chart.layer([at], rule, x={"value": 0}, x2={"value": "width"}, color=chart.COLOUR)
    right, dy = {"value": "width"}, 10 if below else -10
    yield from chart.text([at], "true", gap_px=0, dy=dy, x=right)


def _line(timeline: list[TimelineStep], field: str, colour: str) -> chart.Layer:
    values = [{"x": one.step, "y": getattr(one, field) / GIB} for one in timeline]
    return chart.trace(values, color=colour, interpolate="step-after")


def _highest(found: TrafficFigures, highest: HighestStep) -> chart.Layer:
    alive = map(rows.tensor_cells, highest.largest[:_NAMED_TENSORS])
    tip = [
        f"step {number(highest.number)}: {gib(found.peak_bytes)}, the highest peak",
        *(f"{size} {made}" for size, _, _, made in alive),
    ]
    at = {"x": highest.number, "y": found.peak_bytes / GIB, "tip": " · ".join(tip)}
    return chart.marks([at], {"size": 60, "fill": "var(--accent)"})


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
    digits = "format(datum.value, '~g')"
    x = chart.log_axis(low, high, title="size of the cache, GiB", labelExpr=digits)
    ends = [*zip(sizes, (rate for _, rate in found.curve), strict=True)]
    most = max(found.max_hit_rate, ends[-1][1])
    # A round end for the axis.
    top = next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if most <= end), 1.0)
    y = chart.linear_axis(0, top, {**chart.upright("hit rate"), "format": ".0%"}, rangeMax=44)
    steps = [(low, 0.0), *ends, (high, ends[-1][1])]
    curve, colour = [{"x": s, "y": r} for s, r in steps], "var(--accent)"
    points = [{"x": s, "y": r, "tip": f"{s:.3g} GiB · {share(r)} hit"} for s, r in ends]
    layers = (
        chart.trace(curve, color=colour, strokeWidth=2, interpolate="step-after"),
        chart.marks(points, {"size": 50, "fill": colour}),
        *chart.reference(lines),
    )
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
        drawing=chart.draw(
            layers, f"Hit rate of the processor cache. {summary}", x, y, height_px=220
        ),
        labels=(found.label,),
        head=("size", "hits"),
        rows=[(f"{s:.3g} GiB", share(r)) for s, r in ends],
        notes=notes,
    )
