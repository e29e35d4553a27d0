"""From what serving took to what the reports show of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from mmcalib.derive.demand import Headroom, thinned
from mmcalib.domain.memory import Rehearsed
from mmcalib.domain.traffic import Trace, Traffic, TrafficStep
from mmcalib.results.memory import (
    EncoderCacheUse,
    HighestTrafficStep,
    PeakTensor,
    TimelineStep,
    TrafficFigures,
)

# Points of a timeline: more would not be told apart on a page.
_POINTS: Final = 400
# Requests that are named of one step.
_NAMED: Final = 20


def headroom(served: Traffic, rehearsed: Rehearsed) -> Headroom:
    """What startup reserved is that of the whole model, whatever served the requests."""
    return Headroom(
        rehearsed.total_bytes,
        rehearsed.requested_bytes,
        peak_bytes=_most(step.peak_bytes for step in served.steps),
        reserved_bytes=rehearsed.activation_peak_bytes,
    )


def traffic_figures(served: Traffic, trace: Trace, rehearsed: Rehearsed) -> TrafficFigures:
    """All that was found, ready to be shown or saved."""
    steps, found = served.steps, headroom(served, rehearsed)
    status: Literal["pass", "warn", "fail"] = "fail"
    if found.fits:
        status = "pass" if found.within else "warn"
    return TrafficFigures(
        requests=len(trace.requests),
        of=trace.of,
        served=sum(step.finished for step in steps),
        refused=[f"{origin}: {why}" for origin, why in served.refused],
        steps=len(steps),
        peak_bytes=found.peak_bytes,
        reserved_bytes=found.reserved_bytes,
        outside_bytes=found.outside_bytes,
        margin_bytes=found.nbytes,
        fitting_utilization=found.fitting_utilization,
        status=status,
        preemptions=sum(step.preempted for step in steps),
        encoder_waits=sum(step.held_up for step in steps),
        encoded_items=sum(step.encoded for step in steps),
        reused_items=served.reused,
        cached_tokens=served.cached_tokens,
        concurrency=_most(step.scheduled for step in steps),
        kv_blocks=served.kv_blocks,
        most_kv_blocks=_most(step.kv_blocks for step in steps),
        encoder_cache=EncoderCacheUse(
            tokens=served.cache_tokens,
            used_tokens=_most(step.cache_tokens for step in steps),
            logical_bytes=_most(step.logical_bytes for step in steps),
            alive_bytes=_most(step.alive_bytes for step in steps),
        ),
        highest=_highest(served),
        timeline=[_point(number, step) for number, step in thinned(steps, _POINTS)],
        seconds=round(served.seconds, 2),
    )


def _most(figures: Iterable[int | None]) -> int:
    return max((figure or 0 for figure in figures), default=0)


def _highest(served: Traffic) -> HighestTrafficStep | None:
    highest = served.highest
    if highest is None:
        return None
    step = served.steps[highest.number]
    return HighestTrafficStep(
        number=highest.number,
        tokens=step.tokens,
        encoder_tokens=step.encoder_tokens,
        requests=list(highest.origins[:_NAMED]),
        encoding=list(highest.encoding[:_NAMED]),
        largest=[PeakTensor.showing(one) for one in highest.largest],
    )


def _point(number: int, step: TrafficStep) -> TimelineStep:
    names = TimelineStep.model_fields.keys() - {"step"}
    return TimelineStep(step=number, **{name: getattr(step, name) or 0 for name in names})
