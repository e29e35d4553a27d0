"""Charts of tokens per item and of item sizes."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from mmcalib.checks.catalogue import SIZE_HINT
from mmcalib.gate.bounds import Area, Frames
from mmcalib.limits.values import size_hint
from mmcalib.report.html import canvas as chart
from mmcalib.report.html.items import hint_tokens, known_costs, size_px
from mmcalib.results.calibration import CalibrationDocument, ModalityItems
from mmcalib.results.costs import KnownCost, SizeCell, bin_edge, bin_index
from mmcalib.text import number


def distributions(calibration: CalibrationDocument) -> Iterator[chart.PageFigure]:
    """Yield one chart for each modality with known costs."""
    for modality in calibration.corpus.modalities:
        if known := known_costs(calibration, modality):
            yield _distribution_figure(calibration, modality, known)


def _distribution_figure(
    calibration: CalibrationDocument, modality: str, known: Sequence[KnownCost]
) -> chart.PageFigure:
    found = calibration.corpus.modalities[modality]
    counted = [(one.tokens, one.items) for one in known]
    if others := calibration.costs.modalities[modality].unlisted:
        counted += [(one.least_tokens, one.items) for one in others.tokens]
    counts: Counter[int] = Counter()
    for tokens, times in counted:
        counts[bin_index(tokens)] += times
    # Half-open bins in equal steps of the logarithm.
    bins = [
        (bin_edge(at), bin_edge(at + 1), counts[at]) for at in range(min(counts), max(counts) + 1)
    ]
    lines = _lines(calibration, modality, found)
    values = [value for _, value, _ in lines]
    low, high = min([bins[0][0], *values]) / 1.15, max([bins[-1][1], *values]) * 1.15
    x = chart.log_axis(low, high, title=f"tokens per {modality}")
    most = max(count for _, _, count in bins)
    shown = [
        {
            "x": start,
            "x2": end,
            "y": count,
            "tip": f"{_bin_range(start, end)} tokens · {number(count)} items",
        }
        for start, end, count in bins
        if count
    ]
    bar = {
        "type": "rect",
        "fill": "var(--accent)",
        "stroke": None,
        "xOffset": 0.5,
        "x2Offset": -0.5,
    }
    axis = {**chart.upright("items"), "tickCount": 4, "tickMinStep": 1, "format": ",d"}
    y = chart.linear_axis(0, most, axis, rangeMax=len(lines) * chart.ROW_PX + 8)
    bars = chart.marks(shown, bar, x2={"field": "x2"}, y2={"datum": 0})
    spread = found.tokens
    summary = (
        f"Half of the {number(found.items)} {modality} items take at most "
        f"{number(spread['p50'])} tokens, 99% at most {number(spread['p99'])}; "
        f"the largest takes {number(spread['max'])}."
    )
    return chart.PageFigure(
        key=f"tokens-{modality}",
        title=f"Tokens per {modality}",
        summary=summary,
        drawing=chart.draw(
            (bars, *chart.reference(lines)), f"Tokens per {modality}. {summary}", x, y
        ),
        labels=("measured", "computed"),
        head=("tokens", "items"),
        rows=[(_bin_range(a, b), number(n)) for a, b, n in bins if n],
        notes=[
            f"Bars count {number(sum(n for _, _, n in bins))} items with the tuned settings. "
            "Quantiles count every item with the model's defaults.",
            *(
                f"Size hint: {check.detail}."
                for check in calibration.checks
                if check.name == SIZE_HINT.of(modality).name
            ),
        ],
    )


def _lines(
    calibration: CalibrationDocument, modality: str, found: ModalityItems
) -> list[tuple[str, float, str]]:
    before = calibration.budget.default.max_tokens_per_item.get(modality)
    after = calibration.budget.calibrated.max_tokens_per_item.get(modality)
    hint = hint_tokens(calibration, modality)
    same = " (default)" if before == after else ""
    most, median = found.tokens["max"], found.tokens["p50"]
    lines = (
        (f"default cap {number(before)}", 0 if same else before, "var(--ink-3)"),
        (f"cap {number(after)}{same}", after, "var(--accent-ink)"),
        (f"hint {number(hint)}", hint, "var(--ink-2)"),
        (f"largest {number(most)}", max(1, most), "var(--ink-2)"),
        (f"median {number(median)}", max(1, median), "var(--ink-2)"),
    )
    return [(words, value, colour) for words, value, colour in lines if value]


def _bin_range(start: float, end: float) -> str:
    first, last = math.ceil(start), math.ceil(end) - 1
    return number(first) if last <= first else f"{number(first)}–{number(last)}"


# Rows of the table, costliest first.
_ROWS = 200
_CURVE_STEPS = 48


def sizes(calibration: CalibrationDocument) -> Iterator[chart.PageFigure]:
    """Yield one map of width and height for images, and one for videos."""
    for modality in calibration.corpus.modalities:
        if known := [k for k in known_costs(calibration, modality) if size_px(k.shape)]:
            yield _sizes_figure(calibration, modality, known)


def _sizes_figure(
    calibration: CalibrationDocument, modality: str, known: Sequence[KnownCost]
) -> chart.PageFigure:
    others = calibration.costs.modalities[modality].unlisted
    spots, exact = _spots_of(known, others.sizes if others else ())
    shapes = len(known) + (others.shapes if others else 0)
    edges = _class_edges([spot.tokens for spot in spots])
    hint = size_hint(calibration.limits, modality)
    limit_px = _limit_px(calibration, modality)
    named = "pixels" if modality == "image" else "pixels of a frame"
    x_span = _axis_range([spot.width_px for spot in spots] + [hint.get("width", 0)])
    y_span = _axis_range([spot.height_px for spot in spots] + [hint.get("height", 0)])
    x = chart.log_axis(*x_span, title=f"width, {named}", grid=True)
    y = chart.log_axis(*y_span, grid=True, **chart.upright(f"height, {named}"))
    layers = [_marks(spots, edges, exact)]
    if limit_px:
        layers.append(_curve(limit_px, x_span, y_span))
    if {"width", "height"} <= hint.keys():
        width, height = hint["width"], hint["height"]
        at = {"x": width, "y": height, "tip": f"size hint · {width}×{height}"}
        mark = {"shape": "diamond", "size": 190, "filled": False, "strokeWidth": 2}
        layers.append(chart.marks([at], {**mark, "stroke": "var(--ink)"}))
    costliest = max(spots, key=lambda spot: spot.tokens)
    summary = (
        f"Distinct shapes: {number(shapes)}. The largest takes "
        f"{number(costliest.tokens)} tokens{'' if exact else ' near'} at {costliest.size}."
    )
    legend = [(f"seq-{place}", _class_words(edges, place)) for place in range(len(edges) + 1)]
    if limit_px:
        legend.append(("limit", f"{number(limit_px)} px: larger items are downscaled"))
    if hint:
        legend.append(("hint", "size hint"))
    return chart.PageFigure(
        key=f"sizes-{modality}",
        title=f"Sizes of {modality} {'items' if modality == 'image' else 'frames'}",
        summary=summary,
        drawing=chart.draw(layers, f"Sizes. {summary}", x, y, height_px=300),
        labels=("measured",),
        head=("width × height", "most tokens", "shapes"),
        rows=[(s.size, number(s.tokens), number(s.shapes)) for s in reversed(spots[-_ROWS:])],
        legend=legend,
        notes=[] if limit_px else ["The processor's pixel limit is unknown."],
    )


def _marks(spots: Sequence[Spot], edges: Sequence[int], exact: bool) -> chart.Layer:
    values = [
        {
            "x": spot.width_px,
            "y": spot.height_px,
            "fill": f"var(--seq-{bisect.bisect_right(edges, spot.tokens)})",
            "tip": f"{'' if exact else 'near '}{spot.size} · "
            f"{'' if exact else 'up to '}{number(spot.tokens)} tokens"
            + (f" · {number(spot.shapes)} shapes" if spot.shapes > 1 else ""),
        }
        for spot in spots
    ]
    mark = {"type": "point", "size": 90} if exact else {"type": "square", "size": 60}
    return chart.marks(values, {**mark, "strokeWidth": 1}, fill={"field": "fill", "scale": None})


def _limit_px(calibration: CalibrationDocument, modality: str) -> int | None:
    """Return the pixels of one image or frame above which the processor downscales it."""
    costs = calibration.costs.modalities
    rule = costs[modality].rule if modality in costs else None
    if isinstance(rule, Frames):
        return rule.area.max_px if rule.area and not rule.whole_clip else None
    return rule.max_px if isinstance(rule, Area) else None


def _curve(limit_px: int, x_span: tuple[float, float], y_span: tuple[float, float]) -> chart.Layer:
    """Draw the sizes of `limit_px` pixels, of which a part may be off the map."""
    low, high = max(x_span[0], limit_px / y_span[1]), min(x_span[1], limit_px / y_span[0])
    widths = [low * (high / low) ** (place / _CURVE_STEPS) for place in range(_CURVE_STEPS + 1)]
    values = [{"x": width, "y": limit_px / width} for width in widths if low < high]
    return chart.trace(values, color="var(--ink)", strokeDash=[5, 4])


def _axis_range(pixels: Sequence[float]) -> tuple[float, float]:
    """Return the range of the axis: some air around the values, at least a factor of four."""
    low, high = min(p for p in pixels if p) / 1.3, max(pixels) * 1.3
    middle = math.sqrt(low * high)
    return min(low, middle / 2), max(high, middle * 2)


# With more points than this, the map counts cells.
_POINTS = 250
_CLASSES = 5


@dataclass(slots=True)
class Spot:
    """A size or a cell of sizes; `tokens` is the most that one of its `shapes` takes."""

    width_px: float
    height_px: float
    tokens: int
    shapes: int

    @property
    def size(self) -> str:
        """Rounded to pixels."""
        return f"{self.width_px:.0f}×{self.height_px:.0f}"


def _spots_of(known: Sequence[KnownCost], others: Sequence[SizeCell]) -> tuple[list[Spot], bool]:
    """Return one spot for each size, or for each cell of many sizes; True if they are sizes."""
    of_sizes = [(size, one.tokens) for one in known if (size := size_px(one.shape))]
    exact = not others and len({size for size, _ in of_sizes}) <= _POINTS
    every = [(size, tokens, 1) for size, tokens in of_sizes]
    every += [((c.shape.width_px, c.shape.height_px), c.tokens, c.shapes) for c in others]
    spots: dict[tuple[float, float], Spot] = {}
    for size, tokens, more in every:
        # The middle of a cell a third of an octave wide.
        width, height = size if exact else (bin_edge(bin_index(px) + 0.5) for px in size)
        spot = spots.setdefault((width, height), Spot(width, height, tokens, 0))
        spot.shapes += more
        spot.tokens = max(spot.tokens, tokens)
    return sorted(spots.values(), key=attrgetter("tokens", "width_px", "height_px")), exact


def _class_edges(tokens: Sequence[int]) -> list[int]:
    """Return the rounded edges of the colour classes, even steps of the logarithm."""
    low, high = max(1, min(tokens)), max(tokens)
    rounded: set[int] = set()
    for nth in range(1, _CLASSES):
        step = low * (high / low) ** (nth / _CLASSES)
        # To two digits.
        unit = 10 ** max(0, math.floor(math.log10(step)) - 1)
        rounded.add(int(round(step / unit) * unit))
    return sorted(edge for edge in rounded if low < edge <= high)


def _class_words(edges: Sequence[int], place: int) -> str:
    if not edges:
        return "all the same"
    if place == 0:
        return f"below {number(edges[0])} tokens"
    if place == len(edges):
        return f"{number(edges[-1])} or more"
    return f"{number(edges[place - 1])}–{number(edges[place] - 1)}"
