"""The size of vLLM's processor cache (`mm-processor-cache-gb`), from a corpus' repeats (R7)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby

# A cache for the last few percent of the hits can cost as much as one for all the others.
NEARLY_ALL = 0.95

# vLLM multiplies `mm_processor_cache_gb` by `GiB_bytes`, whatever its name says
# (vllm/multimodal/cache/base.py of 0.32).
GIB = 2**30
# The steps in which a size is written.
STEPS_PER_GIB = 100


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Hits of one LRU cache as a function of its capacity in bytes.

    A cache of `capacities[i]` bytes hits `hits[i]` times, and so does any larger one below
    `capacities[i + 1]`. Both ascend; both are empty where nothing repeats.
    """

    accesses: int
    distinct: int
    distinct_bytes: int
    largest_bytes: int
    capacities: tuple[int, ...]
    hits: tuple[int, ...]

    @property
    def most_hits(self) -> int:
        """Hits of a cache that forgets nothing: every access but the first of each key."""
        return self.accesses - self.distinct

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
        for capacity, reached in zip(self.capacities, self.hits, strict=True):
            if reached >= hits:
                return capacity
        raise ValueError(f"no cache hits {hits} of {self.accesses} accesses")


@dataclass(frozen=True, slots=True)
class CacheSize:
    """A size for `mm-processor-cache-gb` (GiB, 0 switches the cache off) and what it earns.

    `total_bytes` is what vLLM says it may hold in all processes together.
    """

    mm_processor_cache_gb: float
    hit_rate: float
    most_hit_rate: float
    total_bytes: int
    ram_limited: bool

    @property
    def capacity_bytes(self) -> int:
        return round(self.mm_processor_cache_gb * GIB)


def hit_curve(accesses: Iterable[tuple[Hashable, int]]) -> HitCurve:
    """The hit curve of (content key, processed bytes) in the order of the requests.

    The rule: an access hits if and only if the bytes of the distinct items accessed since its own
    last access, plus its own, are at most the capacity. With one size per key an LRU cache always
    holds the most recent items that fit, so this is exact for every capacity that holds the largest
    item, and hits never fall as capacity grows.

    Where vLLM's cache (`cachetools.LRUCache` by size, vllm/multimodal/cache) deviates:

    - Below the largest item the curve is a lower bound: vLLM 0.32 serves what exceeds the whole
      cache uncached, and such an item pushes nothing out (0.23 still raises "value too large").
      Real hits may there even fall as capacity grows.
    - Within one request the items already cached are touched before new ones are stored, so a
      request's new items push out other requests' items first; see `choose` for what happens when
      that is not enough.
    - It is one process' cache. With several API servers each has its own and sees its share of
      the requests; `mm_processor_cache_type: shm` forgets first in, first out.

    Raises ValueError for a size that is not positive or differs between accesses of one key.
    O(n log n): a Fenwick tree over positions holds each item's bytes at its last access.
    """
    items = list(accesses)
    end = len(items)
    tree = [0] * (end + 1)
    last: dict[Hashable, int] = {}
    sizes: dict[Hashable, int] = {}
    held = 0
    needed: list[int] = []
    for position, (key, nbytes) in enumerate(items, 1):
        before = last.get(key)
        if before is None:
            if nbytes <= 0:
                raise ValueError(f"{key!r} has {nbytes} bytes")
            sizes[key] = nbytes
            held += nbytes
        else:
            if sizes[key] != nbytes:
                raise ValueError(f"{key!r} has {sizes[key]} bytes and {nbytes} bytes")
            # What was last accessed before this item's own last access need not be held.
            older, at = 0, before - 1
            while at:
                older += tree[at]
                at &= at - 1
            needed.append(held - older)
            at = before
            while at <= end:
                tree[at] -= nbytes
                at += at & -at
        last[key] = position
        at = position
        while at <= end:
            tree[at] += nbytes
            at += at & -at
    needed.sort()
    steps = [(capacity, sum(1 for _ in same)) for capacity, same in groupby(needed)]
    return HitCurve(
        accesses=end,
        distinct=len(sizes),
        distinct_bytes=held,
        largest_bytes=max(sizes.values(), default=0),
        capacities=tuple(capacity for capacity, _ in steps),
        hits=tuple(accumulate(count for _, count in steps)),
    )


def choose(
    curve: HitCurve,
    *,
    largest_request_bytes: int = 0,
    share: float = NEARLY_ALL,
    ram_budget_bytes: int | None = None,
    api_server_count: int = 1,
    data_parallel_size: int = 1,
) -> CacheSize:
    """The smallest size that reaches `share` of the attainable hits, 0 where nothing repeats.

    Attainable are the hits of the largest cache that `ram_budget_bytes` allows.

    A cache is never smaller than `largest_request_bytes`, the distinct items of the heaviest
    request together, and off where that exceeds the budget: where a request's new items push out
    one that it repeats, vLLM 0.32 fails the request ("Expected a cached item for mm_hash=...",
    vllm/multimodal/cache/lru.py; vLLM PR 28525 assumes that a request fits).

    vLLM 0.32 says of `mm_processor_cache_gb` (vllm/config/multimodal.py) that the cache is
    duplicated for each API server and engine core process, `mm_processor_cache_gb *
    (api_server_count + data_parallel_size)` in all; that is what the budget pays for. Its code
    holds less: with one API server and no internal data parallelism only the engine keeps tensors,
    otherwise only the API servers do (vllm/multimodal/cache/factories.py, lru.py).
    """
    processes = api_server_count + data_parallel_size
    most = curve.most_hits
    if ram_budget_bytes is not None:
        affordable = max(ram_budget_bytes, 0) * STEPS_PER_GIB // (processes * GIB)
        most = curve.hits_at(affordable * GIB / STEPS_PER_GIB)
        if largest_request_bytes * STEPS_PER_GIB > affordable * GIB:
            most = 0
    capacity = curve.capacity_for(math.ceil(round(share * most, 9)))
    capacity = max(capacity, largest_request_bytes) if capacity else 0
    gib = -(-capacity * STEPS_PER_GIB // GIB) / STEPS_PER_GIB
    return CacheSize(
        mm_processor_cache_gb=gib,
        hit_rate=curve.rate_at(gib * GIB),
        most_hit_rate=curve.most_hits / curve.accesses if curve.accesses else 0.0,
        total_bytes=round(gib * GIB) * processes,
        ram_limited=most < curve.most_hits,
    )
