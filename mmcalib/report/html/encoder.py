"""The encoder's peak over the tokens of a batch: what was measured, and the fitted curve."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import wording
from mmcalib.report import encoder_words
from mmcalib.report.html.canvas import SHORT, Canvas, Layer, draw, upright
from mmcalib.report.html.figure import PageFigure
from mmcalib.result.encoder_sweep import EncoderCurve, EncoderPoint, EncoderSweep, ModalitySweep
from mmcalib.sizes import GIB

_CURVE_STEPS = 48
_SINGLE = {"shape": "circle", "filled": True, "size": 75, "stroke": "var(--paper)", "opacity": 1}
_SEVERAL = {"shape": "diamond", "filled": False, "size": 130, "strokeWidth": 2, "opacity": 1}


def encoders(sweep: EncoderSweep) -> Iterator[PageFigure]:
    """One chart per modality that was swept."""
    for modality, one in sweep.modalities.items():
        yield _figure(sweep, modality, one)


def _figure(sweep: EncoderSweep, modality: str, one: ModalitySweep) -> PageFigure:
    most_tokens = max(point.tokens for point in one.points)
    most_bytes = max(point.peak_bytes for point in one.points)
    if one.curve:
        most_bytes = max(most_bytes, round(one.curve.at(most_tokens)))
    x = {
        "field": "tokens",
        "type": "quantitative",
        "axis": {"title": "tokens of the batch", "labelExpr": SHORT, "grid": False, "tickCount": 6},
        "scale": {"domain": [0, most_tokens * 1.05], "nice": False},
    }
    y = {
        "field": "gib",
        "type": "quantitative",
        "axis": upright("peak above the inputs, GiB"),
        "scale": {"domain": [0, most_bytes / GIB * 1.1], "nice": False},
    }
    several = [point for point in one.points if point.items > 1]

    def layers(canvas: Canvas) -> Iterator[Layer]:
        del canvas
        if one.curve:
            yield _curve(one.curve, most_tokens * 1.05, x, y)
        single = [point for point in one.points if point.items == 1]
        yield _marks(single, {**_SINGLE, "fill": "var(--accent)"}, x, y)
        if several:
            yield _marks(several, {**_SEVERAL, "color": "var(--ink)"}, x, y)

    said = encoder_words.modality_line(one)
    return PageFigure(
        key=f"encoder-{modality}",
        title=f"The encoder's peak, {modality}",
        summary=f"{said}.",
        drawing=draw(layers, f"Peak of the encoder over tokens, {modality}. {said}."),
        labels=("measured", "computed", "rehearsed") if sweep.gpu else ("measured", "computed"),
        head=encoder_words.HEAD,
        rows=list(encoder_words.rows(one)),
        legend=[
            ("chosen", f"one {modality}"),
            *([("hint", "several at once")] if several else []),
            *([("limit", "fitted through single items")] if one.curve else []),
        ],
        notes=[
            f"Measured on {encoder_words.depth(sweep)}.",
            f"{encoder_words.cache(sweep)}, computed.",
        ],
    )


def _marks(points: list[EncoderPoint], style: Layer, x: Layer, y: Layer) -> Layer:
    values = [
        {
            "tokens": point.tokens,
            "gib": point.peak_bytes / GIB,
            "tip": f"{encoder_words.items(point.shape, point.items)} · "
            f"{wording.number(point.tokens)} tokens · {encoder_words.mib(point.peak_bytes)}",
        }
        for point in points
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "point", **style},
        "encoding": {"x": x, "y": y, "description": {"field": "tip"}},
    }


def _curve(curve: EncoderCurve, most_tokens: float, x: Layer, y: Layer) -> Layer:
    steps = [most_tokens * place / _CURVE_STEPS for place in range(_CURVE_STEPS + 1)]
    values = [{"tokens": at, "gib": max(0.0, curve.at(at)) / GIB} for at in steps]
    return {
        "data": {"values": values},
        "mark": {
            "type": "line",
            "color": "var(--ink)",
            "strokeWidth": 1.5,
            "strokeDash": [5, 4],
            "aria": False,
        },
        "encoding": {"x": x, "y": y, "order": {"field": "tokens", "type": "quantitative"}},
    }
