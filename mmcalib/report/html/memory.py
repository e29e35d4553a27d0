"""Memory bars, adequacy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmcalib.checks.reserve import PREDICTED
from mmcalib.report import rows
from mmcalib.report.html.canvas import (
    ROW_PX,
    Canvas,
    Layer,
    PageFigure,
    colours_of,
    draw,
    layer,
    linear_axis,
    reference,
    text,
)
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.memory import Memory
from mmcalib.text import GIB, gib, plain

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
        description={"field": "tip"},
    )


def _words(
    parts: Sequence[BarPart], bars: Sequence[tuple[str, Memory]], scale: float
) -> Iterator[Layer]:
    """Above each bar its name, and what is missing for an engine to start; sizes within the parts
    that are wide enough for them.
    """
    for row, (name, one) in enumerate(bars):
        short = one.kv_cache_bytes is not None and one.kv_cache_bytes < 0
        words = f"{name}: {gib(-(one.kv_cache_bytes or 0))} short" if short else name
        yield from text(words, 0, _row_y(row) + 13, "left", "var(--bad)" if short else "var(--ink)")
    rows = [name for name, _ in bars]
    for part in parts:
        start, end = part.start / GIB * scale, part.end / GIB * scale
        if end - start >= _LABEL_PX:
            y = _row_y(rows.index(part.bar)) + _NAME_PX + _MEMORY_BAR_PX / 2 + 1
            size, colour = f"{(part.end - part.start) / GIB:.2f}", f"var(--on-{part.colour})"
            yield from text(size, (start + end) / 2, y, "center", colour, weight=500, halo=False)


def _row_y(row: int) -> int:
    """Where a bar's row begins."""
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
    bars = _bars(calibration)
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
        notes=list(_notes(calibration)),
    )


def _bars(calibration: CalibrationDocument) -> list[tuple[str, Memory]]:
    found = calibration.memory
    bars = [(one.name, one.memory) for one in rows.columns(calibration)]
    if found.measured is not None:
        where = f" on {calibration.startup.device}" if calibration.startup else ""
        bars.append((f"measured{where}", found.measured))
    return bars


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
    if value is None:
        return "—"
    return f"{gib(value)} ({rows.label_of(one, field)})"


def _notes(calibration: CalibrationDocument) -> Iterator[str]:
    found = calibration.memory
    if found.calibrated.kv_cache_bytes is None:
        yield "mmcalib run --gpu NAME predicts the memory of a GPU without having it."
    for one in rows.columns(calibration):
        if one.memory.note:
            yield f"{one.name}: {plain(one.memory.note).rstrip('.')}."
    if found.measured is not None and found.measured.note:
        yield f"Of the engine start: {plain(found.measured.note).rstrip('.')}."
    yield from (
        f"Predicted against measured: {plain(check.detail)}."
        for check in PREDICTED.among(calibration.checks)
    )
