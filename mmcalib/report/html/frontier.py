"""Frontier chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmcalib import text as wording
from mmcalib.domain.knobs import Label
from mmcalib.report.html.canvas import (
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
from mmcalib.results.calibration import CalibrationDocument, FrontierPoint
from mmcalib.results.memory import Memory

# Shapes of Vega-Lite that differ without colour; knobs beyond these share the last.
SHAPES = ("circle", "square", "triangle-up", "diamond")
_CHOSEN_PX2, _POINT_PX2 = 150, 75
_SHUT, _SHUT_PX = "would not start", 104


def closed(canvas: Canvas, x: Layer, below: float) -> Iterator[Layer]:
    """The part of the chart where no engine starts."""
    low, high = x["scale"]["domain"]
    at = (below - low) / (high - low) * canvas.width_px
    area = {"type": "rect", "x": 0, "x2": at, "y": 0, "y2": canvas.height_px}
    colours = {"color": "var(--bad-soft)", "aria": False}
    yield {"data": {"values": [{}]}, "mark": {**area, **colours}, "encoding": {}}
    (rule, *_) = reference([("", below, "var(--bad)")], canvas, x)
    rule["mark"] |= {"strokeDash": [5, 4]}
    yield rule
    inside = at > _SHUT_PX
    said = _SHUT if inside else f"← {_SHUT}"
    place = at - 6 if inside else at + 6
    side = "right" if inside else "left"
    yield from text(said, place, canvas.height_px - 12, side, "var(--bad)", halo=False)


def series(
    spots: Sequence[tuple[FrontierPoint, float, float]],
    knobs: Sequence[str],
    x: Layer,
    y: Layer,
) -> Iterator[Layer]:
    """A thin line through each knob's values, then their points, the chosen ones on top."""
    for knob in knobs:
        mine = [(p.value, at, kept) for p, at, kept in spots if p.knob == knob]
        yield {
            "data": {"values": [{"value": v, "at": at, "kept": kept} for v, at, kept in mine]},
            "mark": {"type": "line", "color": "var(--line-2)", "strokeWidth": 1, "aria": False},
            "encoding": {"x": x, "y": y, "order": {"field": "value", "type": "quantitative"}},
        }
    for wanted, style in _STYLES.items():
        for number, knob in enumerate(knobs):
            mine_too = [s for s in spots if s[0].knob == knob and s[0].choice == wanted]
            if mine_too:
                yield {
                    "data": {
                        "values": [
                            {"at": at, "kept": kept, "tip": _tip(p)} for p, at, kept in mine_too
                        ]
                    },
                    "mark": {"type": "point", "shape": SHAPES[min(number, 3)], **style},
                    "encoding": {"x": x, "y": y, "description": {"field": "tip"}},
                }


_STYLES: dict[str, Layer] = {
    "beaten": {
        "filled": True,
        "size": _POINT_PX2 * 0.8,
        "fill": "var(--line-2)",
        "stroke": "var(--paper)",
        "opacity": 1,
    },
    "open": {
        "filled": True,
        "size": _POINT_PX2,
        "fill": "var(--paper)",
        "stroke": "var(--accent)",
        "strokeWidth": 1.8,
        "opacity": 1,
    },
    "chosen": {
        "filled": True,
        "size": _CHOSEN_PX2,
        "fill": "var(--accent)",
        "stroke": "var(--paper)",
        "strokeWidth": 2,
        "opacity": 1,
    },
}


def _tip(point: FrontierPoint) -> str:
    """What the reader would have to type, and what it does."""
    parts = [
        f"{wording.plain(point.knob)} = {wording.number(point.value)}",
        f"keeps {wording.share(point.mean_retention)}, "
        f"worst item {wording.share(point.worst_retention)}",
        f"largest item {wording.number(point.max_tokens)} tokens",
        f"encoder budget {wording.number(point.encoder_budget_tokens)} tokens",
    ]
    if point.kv_cache_tokens is not None:
        parts.append(
            f"KV cache {wording.number(point.kv_cache_tokens)} tokens, "
            f"{wording.ratio(point.max_concurrency)} requests at once"
        )
    elif point.kv_cache_bytes is not None:
        parts.append(f"KV cache {wording.room(point.kv_cache_bytes)}: would not start")
    if point.choice != "open":
        parts.append(point.choice)
    return " · ".join(parts)


# All that can be kept, and some air for the points there.
_TOP = 1.07


def frontiers(calibration: CalibrationDocument) -> Iterator[PageFigure]:
    """One chart per modality of which an option was turned."""
    for modality in dict.fromkeys(point.modality for point in calibration.frontier):
        points = [p for p in calibration.frontier if p.modality == modality]
        yield _figure(calibration, modality, points)


def kv_tokens(point: FrontierPoint, memory: Memory) -> float | None:
    """Tokens that the KV cache holds, below zero by what is missing for an engine to start."""
    if point.kv_cache_tokens is not None:
        return point.kv_cache_tokens
    if point.kv_cache_bytes is None:
        return None
    if memory.kv_cache_tokens and memory.kv_cache_bytes:
        # Of a model whose layers do not all keep every token this is not what one takes.
        return point.kv_cache_bytes * memory.kv_cache_tokens / memory.kv_cache_bytes
    return point.kv_cache_bytes / memory.kv_bytes_per_token if memory.kv_bytes_per_token else None


def _figure(
    calibration: CalibrationDocument, modality: str, points: Sequence[FrontierPoint]
) -> PageFigure:
    memory = calibration.memory.calibrated
    room = {id(point): kv_tokens(point, memory) for point in points}
    by_memory = all(value is not None for value in room.values())
    if not by_memory:
        room = {id(point): max(1.0, point.encoder_budget_tokens) for point in points}
    spots = [(p, float(room[id(p)] or 0), p.mean_retention) for p in points]
    # The KV cache has to hold one request of full length.
    least = float(calibration.engine_config.get("max_model_len") or 0)
    x = _axis([at for _, at, _ in spots], memory.gpu, by_memory=by_memory)
    knobs = list(dict.fromkeys(point.knob for point in points))
    beaten = any(point.choice == "beaten" for point in points)

    def layers(canvas: Canvas) -> Iterator[Layer]:
        y = {
            "field": "kept",
            "type": "quantitative",
            "axis": {
                **upright(f"kept of the {modality} tokens, mean"),
                "format": ".0%",
                "values": [0, 0.2, 0.4, 0.6, 0.8, 1],
                "tickCount": 6,
            },
            "scale": {"domain": [0, _TOP], "nice": False},
        }
        low, high = x["scale"]["domain"]
        if by_memory and low < least < high:
            yield from closed(canvas, x, least)
        yield from series(spots, knobs, x, y)

    chosen = [point for point in points if point.choice == "chosen"]
    kept = "; ".join(
        f"{wording.plain(p.knob)} {wording.number(p.value)} keeps {wording.share(p.mean_retention)}"
        for p in chosen
    )
    summary = f"{len(points)} values tried. " + (f"Chosen: {kept}." if chosen else "None chosen.")
    labels: list[Label] = sorted({point.label for point in points}, reverse=True)
    return PageFigure(
        key=f"frontier-{modality}",
        title=f"What {modality} settings cost and keep",
        summary=summary,
        drawing=draw(layers, f"Frontier. {summary}", height_px=250),
        labels=[*labels, "rehearsed"] if by_memory else labels,
        head=_HEAD,
        rows=[_row(point) for point in points],
        legend=[
            ("chosen", "chosen"),
            ("open", "another value"),
            *([("beaten", "beaten: another is nowhere worse")] if beaten else []),
            *((SHAPES[min(n, 3)], wording.plain(knob)) for n, knob in enumerate(knobs)),
        ],
        notes=list(_notes(calibration, points, by_memory=by_memory)),
    )


def _axis(values: Sequence[float], gpu: str | None, *, by_memory: bool) -> Layer:
    if not by_memory:
        low, high = min(values) / 1.3, max(values) * 1.3
        return log_axis("at", "encoder budget, tokens: less is better", low, high)
    low, high = min(0.0, *values), max(0.0, *values)
    air = (high - low) * 0.06 or 1.0
    where = f" on {wording.plain(gpu)}" if gpu else ""
    return {
        "field": "at",
        "type": "quantitative",
        "scale": {"domain": [low - air if low else 0, high + air], "nice": False},
        "axis": {
            "title": f"KV cache{where}, tokens",
            "labelExpr": SHORT,
            "tickCount": 6,
            "grid": True,
        },
    }


_HEAD = (
    "option",
    "value",
    "largest item",
    "downscaled",
    "mean keeps",
    "worst keeps",
    "encoder budget",
    "KV cache, tokens",
    "requests at once",
    "choice",
)


def _row(point: FrontierPoint) -> tuple[str, ...]:
    return (
        wording.plain(point.knob),
        wording.number(point.value),
        wording.number(point.max_tokens),
        wording.share(point.share_downscaled),
        wording.share(point.mean_retention),
        wording.share(point.worst_retention),
        wording.number(point.encoder_budget_tokens),
        wording.number(point.kv_cache_tokens),
        wording.ratio(point.max_concurrency),
        "" if point.choice == "open" else point.choice,
    )


def _notes(
    calibration: CalibrationDocument, points: Sequence[FrontierPoint], *, by_memory: bool
) -> Iterator[str]:
    side = "right" if by_memory else "left"
    yield f"Up and to the {side} is better."
    yield "Points are values of one option; all others stand as they were chosen."
    shut = sum(p.kv_cache_bytes is not None and p.kv_cache_tokens is None for p in points)
    if shut:
        gpu = wording.plain(calibration.memory.calibrated.gpu or "this GPU")
        yield f"With {shut} of these values vLLM would not start on {gpu}."
    if not by_memory:
        yield "No GPU was rehearsed, so the encoder budget stands for memory: --gpu NAME."
    for knob, others in {p.knob: p.bleeds for p in points if p.bleeds}.items():
        yield f"{wording.plain(knob)} also changes {' and '.join(others)} items."
