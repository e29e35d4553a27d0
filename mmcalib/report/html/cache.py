"""How often the requests would find an item in vLLM's processor cache, by the cache's size."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import wording
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.report.html.canvas import Canvas, Layer, draw, log_axis, reference, upright
from mmcalib.report.html.figure import PageFigure
from mmcalib.results.calibration import ProcessorCache
from mmcalib.sizes import GIB

_DEFAULT_GIB = float(PROCESSOR_CACHE_GIB)


def cache(found: ProcessorCache) -> PageFigure | None:
    """The curve, or None where nothing repeats."""
    if not found.curve:
        return None
    sizes = [point.capacity_bytes / GIB for point in found.curve]
    chosen = found.mm_processor_cache_gb
    lines = [(f"vLLM's default {_DEFAULT_GIB:g} GiB", _DEFAULT_GIB, "var(--ink-3)")]
    if chosen:
        lines.insert(0, (f"chosen {chosen:g} GiB", chosen, "var(--accent-ink)"))
    shown = [*sizes, *(value for _, value, _ in lines)]
    low, high = min(shown) / 1.4, max(shown) * 1.4
    x = log_axis("size", "size of the cache, GiB", low, high)
    x["axis"]["labelExpr"] = "format(datum.value, '~g')"
    ends = [*zip(sizes, (point.hit_rate for point in found.curve), strict=True)]
    most = max(found.most_hit_rate, ends[-1][1])

    def layers(canvas: Canvas) -> Iterator[Layer]:
        y = {
            "field": "rate",
            "type": "quantitative",
            "axis": {**upright("share of items that hit"), "format": ".0%"},
            "scale": {"domain": [0, _ceiling(most)], "range": [canvas.height_px, 44]},
        }
        steps = [{"size": low, "rate": 0}, *({"size": s, "rate": r} for s, r in ends)]
        steps.append({"size": high, "rate": ends[-1][1]})
        base = {"x": x, "y": y}
        yield {
            "data": {"values": steps},
            "mark": {
                "type": "line",
                "interpolate": "step-after",
                "color": "var(--accent)",
                "strokeWidth": 2,
                "aria": False,
            },
            "encoding": base,
        }
        yield {
            "data": {
                "values": [
                    {"size": s, "rate": r, "tip": f"{s:.3g} GiB · {wording.share(r)} hit"}
                    for s, r in ends
                ]
            },
            "mark": {
                "type": "point",
                "filled": True,
                "size": 50,
                "fill": "var(--accent)",
                "stroke": "var(--paper)",
                "opacity": 1,
            },
            "encoding": {**base, "description": {"field": "tip"}},
        }
        yield from reference(lines, canvas, x)

    summary = (
        f"Of {wording.number(found.accesses)} uses of an item in {wording.number(found.requests)} "
        f"requests, {wording.share(found.hit_rate)} hit with {chosen:g} GiB; "
        f"{wording.share(found.most_hit_rate)} is the most that any size can give."
    )
    return PageFigure(
        key="cache",
        title="Processor cache",
        summary=summary,
        drawing=draw(layers, f"Hit rate of the processor cache. {summary}", height_px=220),
        labels=(found.label,),
        head=("size", "hits"),
        rows=[(f"{s:.3g} GiB", wording.share(r)) for s, r in ends],
        notes=[
            f"In both processes of a server it may hold {wording.gib(found.total_bytes)} of RAM.",
            *_more(found),
            *([] if found.complete else ["The request log was read in part only."]),
        ],
    )


def _more(found: ProcessorCache) -> Iterator[str]:
    """What a larger cache than is allowed would bring."""
    if found.wanted_gb is not None and found.wanted_gb > found.mm_processor_cache_gb:
        rate, size = wording.share(found.wanted_hit_rate), f"{found.wanted_gb:g} GiB"
        yield f"{rate} would hit with {size} in each process, more than is allowed."


def _ceiling(rate: float) -> float:
    """A round end for the axis above `rate`."""
    return next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if rate <= end), 1.0)
