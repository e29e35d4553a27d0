"""How many tokens the items of each modality cost, with what is reserved for one drawn in."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mmcalib import wording
from mmcalib.checks.reserve import SIZE_HINT
from mmcalib.derive.distribution import edge, place
from mmcalib.report.html.canvas import ROW_PX, Canvas, Layer, draw, log_axis, reference, upright
from mmcalib.report.html.figure import PageFigure
from mmcalib.report.html.known import Costed, costed, hint_tokens, unlisted
from mmcalib.results.calibration import CalibrationDocument, ModalityItems


def distributions(calibration: CalibrationDocument) -> Iterator[PageFigure]:
    """One chart per modality of which the calibration keeps costs."""
    for modality, found in calibration.corpus.modalities.items():
        known = costed(calibration, modality)
        if known:
            yield _figure(calibration, modality, found, known)


def _figure(
    calibration: CalibrationDocument, modality: str, found: ModalityItems, known: Sequence[Costed]
) -> PageFigure:
    by_items = all(one.items is not None for one in known)
    what = "items" if by_items else "distinct shapes"
    counted = [(one.tokens, one.items if by_items and one.items else 1) for one in known]
    if others := unlisted(calibration, modality):
        counted += [(b.least_tokens, b.items if by_items else b.shapes) for b in others.tokens]
    bins = binned(counted)
    lines = _lines(calibration, modality, found)
    values = [value for _, value, _ in lines]
    low, high = min([bins[0][0], *values]) / 1.15, max([bins[-1][1], *values]) * 1.15
    x = log_axis("from", f"tokens per {modality}", low, high)
    most = max(count for _, _, count in bins)

    def layers(canvas: Canvas) -> Iterator[Layer]:
        y = {
            "field": "count",
            "type": "quantitative",
            "axis": {**upright(what), "values": _counts(most), "format": ",d"},
            "scale": {
                "domain": [0, most],
                "nice": False,
                "range": [canvas.height_px, len(lines) * ROW_PX + 8],
            },
        }
        yield {
            "data": {
                "values": [
                    {
                        "from": start,
                        "to": end,
                        "count": count,
                        "tip": f"{_span(start, end)} tokens · {wording.number(count)} {what}",
                    }
                    for start, end, count in bins
                    if count
                ]
            },
            "mark": {"type": "rect", "color": "var(--accent)", "xOffset": 0.5, "x2Offset": -0.5},
            "encoding": {
                "x": x,
                "x2": {"field": "to"},
                "y": y,
                "y2": {"datum": 0},
                "description": {"field": "tip"},
            },
        }
        yield from reference(lines, canvas, x)

    tokens = found.tokens
    summary = (
        f"Half of the {wording.number(found.items)} {modality} items cost "
        f"{wording.number(tokens.p50)} tokens or fewer, 99% no more than "
        f"{wording.number(tokens.p99)}; the costliest costs {wording.number(tokens.max)}."
    )
    return PageFigure(
        key=f"tokens-{modality}",
        title=f"Tokens per {modality}",
        summary=summary,
        drawing=draw(layers, f"Tokens per {modality}. {summary}"),
        labels=("measured", "computed"),
        head=("tokens", what),
        rows=[(_span(a, b), wording.number(n)) for a, b, n in bins if n],
        notes=[
            f"Bars count {what}, {wording.number(sum(n for _, _, n in bins))} in all, under the "
            "calibrated setting; the quantiles count every item, under the model's default one.",
            *_hint_note(calibration, modality),
        ],
    )


def _lines(
    calibration: CalibrationDocument, modality: str, found: ModalityItems
) -> list[tuple[str, float, str]]:
    """What is reserved for one item by default and now, the hint, and the costliest item."""
    before = calibration.budget.default.max_tokens_per_item.get(modality)
    after = calibration.budget.calibrated.max_tokens_per_item.get(modality)
    hint = hint_tokens(calibration, modality)
    lines: list[tuple[str, float, str]] = []
    if before and before != after:
        lines.append((f"default cap {wording.number(before)}", before, "var(--ink-3)"))
    if after:
        same = " (default)" if before == after else ""
        lines.append((f"cap {wording.number(after)}{same}", after, "var(--accent-ink)"))
    if hint:
        lines.append((f"hint {wording.number(hint)}", hint, "var(--ink-2)"))
    most = found.tokens.max
    lines.append((f"costliest {wording.number(most)}", most, "var(--ink-2)"))
    lines.append((f"median {wording.number(found.tokens.p50)}", found.tokens.p50, "var(--ink-2)"))
    return [(said, max(1, value), colour) for said, value, colour in lines]


def _hint_note(calibration: CalibrationDocument, modality: str) -> Iterator[str]:
    found = SIZE_HINT.of(modality).among(calibration.checks)
    yield from (f"Size hint: {check.detail}." for check in found)


def binned(tokens: Iterable[tuple[int, int]]) -> list[tuple[float, float, int]]:
    """(from, to, how many) of (tokens, how many), in equal steps of the logarithm; from is in the
    bin, to is not.
    """
    counts: Counter[int] = Counter()
    for value, times in tokens:
        counts[place(value)] += times
    return [(edge(at), edge(at + 1), counts[at]) for at in range(min(counts), max(counts) + 1)]


def _counts(most: int) -> list[int]:
    """Whole numbers for the axis, four steps at most."""
    step = max(1, math.ceil(most / 4))
    unit = 10 ** (len(str(step)) - 1)
    step = math.ceil(step / unit) * unit
    return list(range(0, most + 1, step))


def _span(start: float, end: float) -> str:
    first, last = math.ceil(start), math.ceil(end) - 1
    return (
        wording.number(first)
        if last <= first
        else f"{wording.number(first)}–{wording.number(last)}"
    )
