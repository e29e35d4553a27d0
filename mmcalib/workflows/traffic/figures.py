"""From what serving took to what the reports show of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from mmcalib.derive.demand import thinned
from mmcalib.domain.memory import Rehearsed
from mmcalib.domain.traffic import HighestStep, Trace, Traffic
from mmcalib.results.memory import TimelineStep, TrafficFigures

# Points of a timeline: more would not be told apart on a page.
_POINTS: Final = 400
# Requests that are named of one step.
_NAMED: Final = 20


def traffic_figures(served: Traffic, trace: Trace, rehearsed: Rehearsed) -> TrafficFigures:
    """All that was found, ready to be shown or saved. What startup reserved is that of the whole
    model, whatever served the requests.
    """
    steps = served.steps
    return TrafficFigures(
        requests=len(trace.requests),
        refused=[f"{origin}: {why}" for origin, why in served.refused],
        steps=len(steps),
        reserved_bytes=rehearsed.activation_peak_bytes,
        outside_bytes=rehearsed.total_bytes - rehearsed.requested_bytes,
        total_bytes=rehearsed.total_bytes,
        preemptions=sum(step.preempted for step in steps),
        encoder_waits=sum(step.held_up for step in steps),
        encoded_items=sum(step.encoded for step in steps),
        reused_items=served.reused,
        cached_tokens=served.cached_tokens,
        concurrency=_most(step.scheduled for step in steps),
        kv_blocks=served.kv_blocks,
        most_kv_blocks=_most(step.kv_blocks for step in steps),
        cache_tokens=served.cache_tokens,
        most_cache_tokens=_most(step.cache_tokens for step in steps),
        cache_logical_bytes=_most(step.logical_bytes for step in steps),
        cache_alive_bytes=_most(step.alive_bytes for step in steps),
        highest=_with_few_names(served.highest) if served.highest else None,
        timeline=[
            TimelineStep.showing(
                one, step=n, peak_bytes=one.peak_bytes or 0, held_bytes=one.held_bytes or 0
            )
            for n, one in thinned(steps, _POINTS)
        ],
        seconds=round(served.seconds, 2),
    )


def _most(figures: Iterable[int | None]) -> int:
    return max((figure or 0 for figure in figures), default=0)


def _with_few_names(highest: HighestStep) -> HighestStep:
    origins, encoding = highest.origins[:_NAMED], highest.encoding[:_NAMED]
    return replace(highest, origins=origins, encoding=encoding)
