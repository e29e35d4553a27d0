"""Chart of detail against KV cache, one point for each value that was tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mmcalib.domain.knobs import Label
from mmcalib.report.html import canvas as chart
from mmcalib.results.calibration import CalibrationDocument, FrontierPoint
from mmcalib.results.memory import Memory
from mmcalib.text import number, ratio, remaining, share

# Shape and colour of an option's points; options beyond these share the last.
_SHAPES = ("circle", "square", "triangle-up", "diamond")
_COLOURS = ("var(--accent)", "var(--part-activation)", "var(--good)", "var(--ink-2)")
_HEIGHT_PX = 250


def _closed(low: float, below: float) -> Iterator[chart.Layer]:
    """Shade the sizes of KV cache that hold no request of full length."""
    at = {"low": low, "x": below, "words": f"cannot hold {number(int(below))} tokens"}
    at["colour"] = "var(--bad)"
    top, bottom = {"value": 0}, {"value": "height"}
    area = {"type": "rect", "color": "var(--bad-soft)", "aria": False}
    yield chart.layer([at], area, x={"field": "low"}, x2={"field": "x"}, y=top, y2=bottom)
    rule = {"type": "rule", "strokeWidth": 1.5, "strokeDash": [5, 4], "aria": False}
    yield chart.layer([at], rule, y=top, y2=bottom, color=chart.COLOUR)
    words, inside = f"{chart.FITS_LEFT} ? datum.words : '← too small'", {"value": _HEIGHT_PX - 12}
    yield from chart.text([at], words=words, halo=False, y=inside)


# A point with its place on the axes.
_Spot = tuple[FrontierPoint, float, float]


def _series(spots: Sequence[_Spot], knobs: Sequence[str]) -> Iterator[chart.Layer]:
    """Draw a line through the points of each option, and then the points, chosen ones last."""
    ordered = sorted(spots, key=lambda spot: spot[0].value)
    for knob in knobs:
        line = [{"x": at, "y": kept} for point, at, kept in ordered if point.knob == knob]
        yield chart.trace(line, color="var(--line-2)", strokeWidth=1)
    values = [
        {"x": at, "y": kept, "tip": _tip(p), **_style(p.choice, knobs.index(p.knob))}
        for choice in ("beaten", "open", "chosen")
        for p, at, kept in spots
        if p.choice == choice
    ]
    looks = ("shape", "size", "fill", "stroke", "strokeWidth")
    yield chart.marks(values, {}, **{look: {"field": look, "scale": None} for look in looks})


def _style(choice: str, place: int) -> chart.Layer:
    place = min(place, len(_SHAPES) - 1)
    shape, colour, paper = _SHAPES[place], _COLOURS[place], "var(--paper)"
    size, fill, stroke, width = {
        "beaten": (60, "var(--line-2)", paper, 2),
        "open": (75, paper, colour, 1.8),
        "chosen": (150, colour, paper, 2),
    }[choice]
    return {"shape": shape, "size": size, "fill": fill, "stroke": stroke, "strokeWidth": width}


def _names(spots: Sequence[_Spot], *, log: bool) -> Iterator[chart.Layer]:
    """Label the chosen points, and those above the default, with their values."""
    named: dict[tuple[float, float], list[str]] = {}
    for point, at, kept in spots:
        if point.choice == "chosen" or point.mean_enlargement > 1:
            chosen = "chosen: " if point.choice == "chosen" else ""
            gain = f", {number(point.items_gaining)} gain" if point.items_gaining else ""
            named.setdefault((at, kept), []).append(f"{chosen}{number(point.value)}{gain}")
    values = [
        {"x": at, "y": kept, "words": "; ".join(words), "colour": "var(--ink)"}
        for (at, kept), words in named.items()
    ]
    # The line to a point above the default comes from below, with memory from the right.
    size = f"({chart.WORDS_PX} + 12)"
    free = "false" if log else f"datum.y > 1 && scale('x', datum.x) + {size} < width"
    left = f"(!({free}) && scale('x', datum.x) > {size})"
    yield from chart.text(values, left, gap_px=12, dy="datum.y > 1 ? 0 : 18")


def _tip(point: FrontierPoint) -> str:
    parts = [
        f"{point.knob} = {number(point.value)}",
        f"keeps {share(point.mean_retention)}, worst item {share(point.worst_retention)}"
        if point.mean_enlargement <= 1
        else f"{ratio(point.mean_enlargement)} × the tokens, {point.items_gaining:,} items gain",
        f"largest item {number(point.max_tokens)} tokens",
        f"encoder budget {number(point.encoder_budget_tokens)} tokens",
    ]
    if point.kv_cache_tokens is not None:
        parts.append(
            f"KV cache {number(point.kv_cache_tokens)} tokens, "
            f"{ratio(point.max_concurrency)} requests at once"
        )
    elif point.kv_cache_bytes is not None:
        parts.append(f"KV cache {remaining(point.kv_cache_bytes)}: vLLM does not start")
    if point.choice != "open":
        parts.append(point.choice)
    return " · ".join(parts)


# Some air above the highest points.
_TOP = 1.07
# Above this, ticks below the default are too near to each other.
_WIDE = 5


def _tokens_axis(modality: str, most: float) -> chart.Layer:
    """Tokens against the model's default. Above it the axis is compressed."""
    axis = {"format": ".0%", "values": [0, 0.2, 0.4, 0.6, 0.8, 1], "tickCount": 6}
    if most <= 1:
        axis |= chart.upright(f"detail kept: share of {modality} tokens, mean")
        return chart.linear_axis(0, _TOP, axis)
    axis |= chart.upright(f"{modality} tokens against the model's default, mean")
    parts = (0.25, 0.5) if most < _WIDE else ()
    axis |= {"values": [0, *parts, 1, *(2**step for step in range(1, 8) if 2**step <= most)]}
    return chart.linear_axis(0, most * _TOP, axis, type="pow", exponent=0.5)


def frontiers(calibration: CalibrationDocument) -> Iterator[chart.PageFigure]:
    """Yield one chart for each modality that an option changes."""
    for modality in dict.fromkeys(point.modality for point in calibration.frontier):
        points = [p for p in calibration.frontier if p.modality == modality]
        yield _figure(calibration, modality, points)


def _kv_tokens(point: FrontierPoint, memory: Memory) -> float | None:
    """Tokens that the KV cache holds; 0 if it has no room."""
    if point.kv_cache_bytes is not None and point.kv_cache_bytes < 0:
        return 0.0
    if point.kv_cache_tokens is not None:
        return point.kv_cache_tokens
    if point.kv_cache_bytes is None:
        return None
    if memory.kv_cache_tokens and memory.kv_cache_bytes:
        # Layers with sliding windows make `kv_bytes_per_token` too large here.
        return point.kv_cache_bytes * memory.kv_cache_tokens / memory.kv_cache_bytes
    return point.kv_cache_bytes / memory.kv_bytes_per_token if memory.kv_bytes_per_token else None


def _figure(
    calibration: CalibrationDocument, modality: str, points: Sequence[FrontierPoint]
) -> chart.PageFigure:
    memory = calibration.memory.calibrated
    places = [_kv_tokens(point, memory) for point in points]
    by_memory = any(at is not None for at in places)
    if not by_memory:
        places = [max(1.0, point.encoder_budget_tokens) for point in points]
    # Of many values only some are rehearsed.
    spots = [
        (p, at, p.mean_enlargement if p.mean_enlargement > 1 else p.mean_retention)
        for p, at in zip(points, places, strict=True)
        if at is not None
    ]
    # The KV cache has to hold one request of full length.
    least = float(calibration.engine_config.get("max_model_len") or 0)
    x = _axis([at for _, at, _ in spots], memory.gpu, by_memory=by_memory)
    knobs = list(dict.fromkeys(point.knob for point in points))
    beaten = any(point.choice == "beaten" for point in points)
    y = _tokens_axis(modality, max(kept for _, _, kept in spots))

    low, high = x["scale"]["domain"]
    layers = [*_series(spots, knobs), *_names(spots, log=not by_memory)]
    if by_memory and low < least < high:
        layers = [*_closed(low, least), *layers]
    chosen = [point for point in points if point.choice == "chosen"]
    kept = "; ".join(f"{p.knob} {number(p.value)} keeps {share(p.mean_retention)}" for p in chosen)
    summary = f"{len(points)} values tried. " + (f"Chosen: {kept}." if chosen else "None chosen.")
    labels: list[Label] = sorted({point.label for point in points}, reverse=True)
    return chart.PageFigure(
        key=f"frontier-{modality}",
        title=f"Settings for {modality}",
        summary=summary,
        drawing=chart.draw(layers, f"Frontier. {summary}", x, y, height_px=_HEIGHT_PX),
        labels=[*labels, "rehearsed"] if by_memory else labels,
        head=tuple(head for head, _ in _COLUMNS),
        rows=[tuple(spoken(point) for _, spoken in _COLUMNS) for point in points],
        legend=[
            *((f"{_SHAPES[min(n, 3)]} knob-{min(n, 3)}", k) for n, k in enumerate(knobs)),
            *([("beaten", "no better than another value in any column")] if beaten else []),
        ],
        notes=list(_notes(calibration, points, by_memory=by_memory)),
    )


def _axis(values: Sequence[float], gpu: str | None, *, by_memory: bool) -> chart.Layer:
    if not by_memory:
        low, high = min(values) / 1.3, max(values) * 1.3
        return chart.log_axis(low, high, title="encoder budget, tokens: less is better")
    high = max(0.0, *values) * 1.06 or 1.0
    where = f" on {gpu}" if gpu else ""
    axis = {
        "title": f"KV cache{where}, tokens",
        "labelExpr": chart.SHORT,
        "tickCount": 6,
        "grid": True,
    }
    return chart.linear_axis(0, high, axis)


_COLUMNS: tuple[tuple[str, Callable[[FrontierPoint], str]], ...] = (
    ("option", lambda point: point.knob),
    ("value", lambda point: number(point.value)),
    ("largest item", lambda point: number(point.max_tokens)),
    ("downscaled", lambda point: share(point.share_downscaled)),
    ("mean keeps", lambda point: share(point.mean_retention)),
    ("worst keeps", lambda point: share(point.worst_retention)),
    ("still shrunk", lambda point: number(point.items_shrunk)),
    ("gain detail", lambda point: number(point.items_gaining)),
    ("encoder budget", lambda point: number(point.encoder_budget_tokens)),
    ("KV cache, tokens", lambda point: number(point.kv_cache_tokens)),
    ("requests at once", lambda point: ratio(point.max_concurrency)),
    ("choice", lambda point: point.choice.removeprefix("open")),
)


def _notes(
    calibration: CalibrationDocument, points: Sequence[FrontierPoint], *, by_memory: bool
) -> Iterator[str]:
    yield f"Up and to the {'right' if by_memory else 'left'} is better."
    yield "Each point changes one option and leaves the others at their chosen values."
    if any(point.mean_enlargement > 1 for point in points):
        yield "Items that the model's default shrinks gain detail above 100%: --prefer detail."
    shut = sum(p.kv_cache_bytes is not None and p.kv_cache_tokens is None for p in points)
    if shut:
        gpu = calibration.memory.calibrated.gpu or "this GPU"
        yield f"vLLM does not start on {gpu} with {shut} of these values."
    if not by_memory:
        yield "--gpu NAME replaces the encoder budget by the KV cache of that GPU."
    for knob, others in {p.knob: p.bleeds for p in points if p.bleeds}.items():
        yield f"{knob} also changes {' and '.join(others)} items."
