"""The size of vLLM's processor cache (`mm-processor-cache-gb`), from a corpus' repeats (R7)."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mmcalib.derive.stack_distance import Recency
from mmcalib.domain.shares import least_covering
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, PROCESSOR_CACHES
from mmcalib.sizes import GIB

# A cache for the last few percent of the hits can cost as much as one for all the others.
NEARLY_ALL = 0.95

# The steps in which a size is written.
STEPS_PER_GIB = 100


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Hits of one LRU cache as a function of its capacity in bytes.

    An access is one request's use of one item, however often the request names it. A cache of
    `capacities[i]` bytes hits `hits[i]` times, and so does any larger one below
    `capacities[i + 1]`. Both ascend; both are empty where nothing repeats. `largest_request_bytes`
    are the distinct items of the heaviest request together.
    """

    accesses: int
    distinct: int
    distinct_bytes: int
    largest_request_bytes: int
    capacities: Sequence[int]
    hits: Sequence[int]

    @property
    def most_hits(self) -> int:
        """Hits of a cache that forgets nothing: every access but the first of each key."""
        return self.accesses - self.distinct

    @property
    def most_rate(self) -> float:
        """Share of all accesses that a cache of any size can hit."""
        return self.most_hits / self.accesses if self.accesses else 0.0

    def hits_at(self, capacity_bytes: float) -> int:
        position = bisect_right(self.capacities, capacity_bytes)
        return self.hits[position - 1] if position else 0

    def rate_at(self, capacity_bytes: float) -> float:
        """Share of all accesses that hit."""
        return self.hits_at(capacity_bytes) / self.accesses if self.accesses else 0.0

    def capacity_for(self, hits: int) -> int:
        """The smallest capacity with at least so many hits; 0 for none.

        Raises ValueError for more hits than any cache has.
        """
        if hits <= 0:
            return 0
        if hits > self.most_hits:
            raise ValueError(f"no cache hits {hits} of {self.accesses} accesses")
        return self.capacities[bisect_left(self.hits, hits)]

    def points(self, most: int) -> list[tuple[int, float]]:
        """At most so many (capacity, hit rate), evenly apart in hits; the last has them all."""
        steps = (math.ceil(self.most_hits * step / most) for step in range(1, most + 1))
        found = sorted({self.capacity_for(hits) for hits in steps if hits})
        return [(capacity, self.rate_at(capacity)) for capacity in found]


@dataclass(frozen=True, slots=True)
class CacheSize:
    """A size for `mm-processor-cache-gb` (GiB, 0 switches the cache off) and what it earns.

    `total_bytes` is what vLLM says it may hold in all processes together. `allowed_gib` is the most
    that one process may take; a cache is off where that is below `floor_bytes`, what one admissible
    request may bring. `floor_limited`: the hits would need less than the floor. `wanted_gib` would
    reach the share asked for of all hits that there are.
    """

    mm_processor_cache_gb: float
    hit_rate: float
    most_hit_rate: float
    total_bytes: int
    floor_bytes: int
    floor_limited: bool
    allowed_gib: float
    wanted_gib: float
    wanted_hit_rate: float

    @property
    def capacity_bytes(self) -> int:
        # vLLM multiplies by `GiB_bytes`, whatever its name (vllm/multimodal/cache/base.py, 0.32).
        return round(self.mm_processor_cache_gb * GIB)

    @property
    def limited(self) -> bool:
        """A larger allowance would hit more."""
        return self.wanted_gib > self.allowed_gib

    @property
    def unsafe(self) -> bool:
        """No cache that is allowed holds any admissible request."""
        return self.floor_bytes > self.allowed_gib * GIB


def allowed_gib(ram_budget_bytes: int | None, processes: int = PROCESSOR_CACHES) -> float:
    """The most that one cache may take: its part of the budget, of which each process holds one.

    vLLM's own default where the host's memory is not known: no file may ask for more than that
    unless somebody says that it is there.
    """
    if ram_budget_bytes is None:
        return PROCESSOR_CACHE_GIB
    return max(ram_budget_bytes, 0) * STEPS_PER_GIB // (processes * GIB) / STEPS_PER_GIB


def written_gib(nbytes: int) -> float:
    """The least size in the steps in which it is written that holds so many bytes."""
    return -(-nbytes * STEPS_PER_GIB // GIB) / STEPS_PER_GIB


def hit_curve(requests: Iterable[Sequence[tuple[Hashable, int]]]) -> HitCurve:
    """The hit curve of requests in their order, each the (content key, processed bytes) of its
    items in the order in which vLLM merges them.

    The rule: an item hits if and only if the bytes of the distinct items used since it was used
    last, up to this request, plus its own, are at most the capacity. With one size per key an LRU
    cache always holds the most recent items that fit, and vLLM looks all items of a request up
    before it stores any (`_cached_apply_hf_processor`, vllm/multimodal/processing/processor.py of
    0.32), so this is exact for every capacity that holds the largest request, and hits never fall
    as capacity grows. An item that one request names twice is processed twice when it is new, and
    not at all when it is cached: one access either way.

    Where vLLM's cache (`cachetools.LRUCache` by size, vllm/multimodal/cache) deviates:

    - Below the largest request the curve is no promise: what exceeds the whole cache is served
      uncached and pushes nothing out (0.23 still raises "value too large"), and a request may fail
      (see `mmcalib.derive.cache_floor`).
    - It is one process' cache. With several API servers each has its own and sees its share of
      the requests; `mm_processor_cache_type: shm` forgets first in, first out.

    Raises ValueError for a size that is not positive or differs between accesses of one key.
    O(n log n).
    """
    held = Recency()
    last: dict[Hashable, int] = {}
    heaviest = accesses = 0
    needed = array("q")
    for request in requests:
        latest = dict(reversed(request))
        needed.extend(held.since(last[key]) for key in latest if key in last)
        for key in reversed(latest):
            nbytes, before = latest[key], last.get(key)
            if before is None:
                if nbytes <= 0:
                    raise ValueError(f"{key!r} has {nbytes} bytes")
                last[key] = held.append(nbytes)
            elif held.sizes[before] == nbytes:
                last[key] = held.renew(before)
            else:
                raise ValueError(f"{key!r} has {held.sizes[before]} bytes and {nbytes} bytes")
        accesses += len(latest)
        heaviest = max(heaviest, sum(latest.values()))
    capacities, counts = np.unique(np.asarray(needed), return_counts=True)
    return HitCurve(
        accesses=accesses,
        distinct=len(last),
        distinct_bytes=held.total,
        largest_request_bytes=heaviest,
        capacities=array("q", capacities.tobytes()),
        hits=array("q", np.cumsum(counts).tobytes()),
    )


def choose(
    curve: HitCurve,
    floor_bytes: int = 0,
    *,
    share: float = NEARLY_ALL,
    ram_budget_bytes: int | None = None,
    processes: int = PROCESSOR_CACHES,
) -> CacheSize:
    """The smallest size that reaches `share` of the attainable hits, 0 where nothing repeats.

    Attainable are the hits of the largest cache that `allowed_gib` gives. A cache is never smaller
    than `floor_bytes`, what any admissible request may bring (`mmcalib.derive.cache_floor`), nor
    than the largest request at hand, and off where that is more than allowed: vLLM fails requests
    for which a cache is too small.
    """
    allowed = allowed_gib(ram_budget_bytes, processes)
    least = max(floor_bytes, curve.largest_request_bytes)
    most = curve.hits_at(allowed * GIB) if least <= allowed * GIB else 0
    needed = curve.capacity_for(least_covering(share, most))
    gib = written_gib(max(needed, least)) if needed else 0.0
    wanted = curve.capacity_for(least_covering(share, curve.most_hits))
    wanted_gib = written_gib(max(wanted, least)) if wanted else 0.0
    return CacheSize(
        mm_processor_cache_gb=gib,
        hit_rate=curve.rate_at(gib * GIB),
        most_hit_rate=curve.most_rate,
        total_bytes=round(gib * GIB) * processes,
        floor_bytes=least,
        floor_limited=needed < least and gib > 0,
        allowed_gib=allowed,
        wanted_gib=wanted_gib,
        wanted_hit_rate=curve.rate_at(wanted_gib * GIB),
    )
