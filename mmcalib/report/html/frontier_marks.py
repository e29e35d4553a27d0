"""The points of a frontier: each option's values, the chosen ones, and where no engine starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmcalib import wording
from mmcalib.report.html.canvas import Canvas, Layer, reference, text
from mmcalib.results.calibration import FrontierPoint

# Shapes of Vega-Lite that differ without colour; knobs beyond these share the last.
SHAPES = ("circle", "square", "triangle-up", "diamond")
_CHOSEN_PX2, _POINT_PX2 = 150, 75
_SHUT, _SHUT_PX = "would not start", 104


def kept_share(point: FrontierPoint) -> float:
    return point.worst_retention if point.mean_retention is None else point.mean_retention


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
            mine_too = [s for s in spots if s[0].knob == knob and kind(s[0]) == wanted]
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


def kind(point: FrontierPoint) -> str:
    return "chosen" if point.chosen else "beaten" if point.dominated else "open"


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
        f"keeps {wording.share(kept_share(point))}, "
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
    if kind(point) != "open":
        parts.append(kind(point))
    return " · ".join(parts)
