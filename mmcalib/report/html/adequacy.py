"""What vLLM's startup profile runs against the most that one step may encode later."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import wording
from mmcalib.checks.catalogue.reserve import RESERVED
from mmcalib.domain.label import Label
from mmcalib.report import words
from mmcalib.report.html.canvas import Canvas, Layer, draw
from mmcalib.report.html.figure import PageFigure
from mmcalib.result.calibration import CalibrationDocument

_ROW_PX, _BAR_PX = 52, 16


def adequacy(calibration: CalibrationDocument) -> PageFigure | None:
    """Two or three bars in tokens; None where no profile was computed."""
    budget = calibration.budget.calibrated
    if budget.profiled_tokens is None or budget.worst_step_tokens is None:
        return None
    bars = [
        (f"profiled at startup: {words.profile(budget)}", budget.profiled_tokens, "accent"),
        ("the worst step may encode", budget.worst_step_tokens, "line-2"),
    ]
    replay = calibration.startup.replay if calibration.startup else None
    if replay is not None:
        measured = replay.largest_encoder_step_tokens
        bars.append(("largest step of the replay", measured, "line-2"))
    most = max(1, *(size for _, size, _ in bars))

    def layers(canvas: Canvas) -> Iterator[Layer]:
        for row, (name, size, colour) in enumerate(bars):
            yield from _bar(name, size, colour, row * _ROW_PX, canvas, size / most)

    ratio = "not known" if budget.adequacy is None else f"{budget.adequacy:.2f}"
    found = next(RESERVED.among(calibration.checks), None)
    labels: list[Label] = [budget.label, "measured"] if replay else [budget.label]
    summary = f"Profiled ÷ worst step is {ratio}, in tokens."
    return PageFigure(
        key="adequacy",
        title="Is enough reserved?",
        summary=f"{summary} The check says: {wording.plain(found.detail)}." if found else summary,
        drawing=draw(
            layers, f"Adequacy. {summary}", height_px=len(bars) * _ROW_PX - 40, left_px=16
        ),
        labels=labels,
        head=("", "tokens"),
        rows=[(name, wording.number(size)) for name, size, _ in bars],
    )


def _bar(
    name: str, size: int, colour: str, y: int, canvas: Canvas, share: float
) -> Iterator[Layer]:
    tip = f"{name} · {wording.number(size)} tokens"
    yield {
        "data": {"values": [{"tip": tip}]},
        "mark": {
            "type": "rect",
            "x": 0,
            "x2": max(1, share * canvas.width_px),
            "y": y,
            "y2": y + _BAR_PX,
            "color": f"var(--{colour})",
        },
        "encoding": {"description": {"field": "tip"}},
    }
    for said, align, x in ((name, "left", 0), (wording.number(size), "right", canvas.width_px)):
        yield {
            "data": {"values": [{}]},
            "mark": {
                "type": "text",
                "text": said,
                "x": x,
                "y": y - 10,
                "align": align,
                "color": "var(--ink)",
                "aria": False,
            },
        }
