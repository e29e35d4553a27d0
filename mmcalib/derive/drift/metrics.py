"""What a server counts of its traffic, beside what was calibrated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mmcalib.derive.drift.calibrated import CalibratedTraffic
from mmcalib.derive.drift.figure import (
    FEWEST,
    DriftFigure,
    between,
    items_per_request,
    no_more,
    shown,
)

_LARGE: Final = (
    "requests whose prompt is longer than the largest that was calibrated for, by the histogram's "
    "steps of 1, 2 and 5: one within the step that holds that size is not told; the engine took "
    "them all"
)
_MEAN: Final = (
    "prompt tokens in the mean, media and text in one: held against the media of the corpus alone, "
    "and with the reserve for text beside them"
)
_ITEMS: Final = (
    "items that the multimodal cache was asked for, per request, all modalities together; nothing "
    "is counted where mm_processor_cache_gb is 0"
)
_HITS: Final = (
    "items that the cache had; while it fills it has fewer, so a short window shows less than the "
    "traffic is worth"
)
_ANSWERS: Final = "tokens of answers in the mean; a calibration keeps a reserve for them, no length"
_PREEMPTED: Final = (
    "times that a request lost its KV cache to others, per request: the load is above what the "
    "cache holds, whatever its media"
)
_CUT: Final = "answers that ended at their length: the context or what the request asked for"
_REFUSED: Final = (
    "chat requests answered by 4xx, per chat request: of the server's refusals all, for a limit or "
    "for anything else; a proxy before it may have refused more"
)
_KV: Final = "KV cache in use at the moment of the scrape, and no other"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many were at most so large, by the upper ends of its steps; their sum."""

    at_most: Mapping[float, float] = field(default_factory=dict)
    total: float = 0.0

    @property
    def count(self) -> int:
        return round(max(self.at_most.values(), default=0.0))

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def surely_above(self, size: float) -> int:
        """Those in steps that begin at `size` or above."""
        ends = [end for end in self.at_most if end >= size]
        return round(self.count - self.at_most[min(ends)]) if ends else 0


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """What one scrape says, or what was added between two. `finished` by its reason, `http` chat
    requests by the class of their status (`4xx`). Where a counter is not there, None.
    """

    prompts: Histogram
    answers: Histogram
    queries: float | None
    hits: float | None
    preemptions: float | None
    finished: Mapping[str, float]
    http: Mapping[str, float]
    kv_usage: float | None

    def since(self, earlier: ServerCounts) -> ServerCounts | None:
        """What was added; None where the server began to count anew."""
        if self.prompts.count < earlier.prompts.count:
            return None
        return ServerCounts(
            _less_histogram(self.prompts, earlier.prompts),
            _less_histogram(self.answers, earlier.answers),
            _less(self.queries, earlier.queries),
            _less(self.hits, earlier.hits),
            _less(self.preemptions, earlier.preemptions),
            _less_each(self.finished, earlier.finished),
            _less_each(self.http, earlier.http),
            self.kv_usage,
        )


def _less(now: float | None, before: float | None) -> float | None:
    return None if now is None else now - (before or 0.0)


def _less_each(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items()}


def _less_histogram(now: Histogram, before: Histogram) -> Histogram:
    at_most = {end: count - before.at_most.get(end, 0.0) for end, count in now.at_most.items()}
    return Histogram(at_most, now.total - before.total)


def metrics_drift(
    counts: ServerCounts, known: CalibratedTraffic, tolerated: float
) -> Iterator[DriftFigure]:
    """Figures of at least one request; `tolerated` is the share that may be refused, or be larger
    than was calibrated for.
    """
    requests = counts.prompts.count
    chats = sum(counts.http.values())
    refused = counts.http.get("4xx", 0.0) / chats if chats else None
    yield no_more("refused", "share", refused, tolerated, _REFUSED, 0.0)
    above = counts.prompts.surely_above(known.largest_prompt_tokens) / requests
    yield no_more("larger prompts", "share", above, tolerated, _LARGE, 0.0)
    yield between(
        "prompt tokens", "tokens", counts.prompts.mean, _prompt_tokens(known), requests, _MEAN
    )
    items = counts.queries or 0.0
    yield items_per_request(
        "items per request",
        round(items),
        requests if items else 0,
        known.all_items_per_request,
        _ITEMS,
    )
    rate = counts.hits / items if counts.hits is not None and items else None
    yield shown("multimodal cache hits", "share", rate, known.hit_rate, _HITS)
    yield shown("answer tokens", "tokens", counts.answers.mean, None, _ANSWERS)
    yield _preempted(counts, known, requests)
    cut, ended = counts.finished.get("length", 0.0), sum(counts.finished.values())
    yield shown("answers cut", "share", cut / ended if ended else None, None, _CUT)
    yield shown("KV cache in use", "share", counts.kv_usage, None, _KV)


def _prompt_tokens(known: CalibratedTraffic) -> tuple[float | None, float | None]:
    if known.media_tokens is None or not known.prompts:
        return None, None
    least, most = known.media_tokens
    return least, most + known.text_reserve_tokens


def _preempted(counts: ServerCounts, known: CalibratedTraffic, requests: int) -> DriftFigure:
    """Judged where the calibration rehearsed its traffic: none there, and some here, is a shift."""
    name, times = "preemptions per request", counts.preemptions
    today = None if times is None else times / requests
    if known.preemptions is None or requests < FEWEST:
        return shown(name, "count", today, known.preemptions, _PREEMPTED)
    by_chance = math.sqrt(known.preemptions * requests + 1) / requests
    return no_more(
        name, "count", today, known.preemptions + by_chance, _PREEMPTED, known.preemptions
    )
