"""What one admissible request may put into vLLM's processor cache: the least size that is safe.

vLLM looks all items of a request up, then stores the new ones. Where those push out an item that
the same request found cached, it fails with HTTP 500, "Expected a cached item for mm_hash=..."
(`_merge_mm_kwargs` in vllm/multimodal/processing/processor.py and `get_and_update_item` in
vllm/multimodal/cache/lru.py of 0.32; vLLM PR 28525 assumes that a request fits).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mmcalib.derive.costs import CostTable
from mmcalib.domain.knobs import least_covering
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, PROCESSOR_CACHES, QWEN_MOST_ASPECT
from mmcalib.text import GIB

# Positions whose bytes are summed one by one: few enough to be quick, many enough to keep the tree
# above them small.
_BLOCK_BITS = 5
_BLOCK = 1 << _BLOCK_BITS


class Recency:
    """A list of sizes that grows at its end, with O(log n) sums from any position to the end.

    Positions count from 0; where an item was moved away 0 bytes are left. Blocks of sizes below, a
    Fenwick tree over the full blocks above.
    """

    def __init__(self) -> None:
        self.total = 0
        self.sizes = array("q")
        self._tree = [0]

    def append(self, nbytes: int) -> int:
        """Add an item at the end; returns its position."""
        self.total += nbytes
        return self._put(nbytes)

    def renew(self, position: int) -> int:
        """Move the item there to the end; the other positions stay. Returns its new one."""
        nbytes, self.sizes[position] = self.sizes[position], 0
        tree, end = self._tree, len(self._tree)
        node = (position >> _BLOCK_BITS) + 1
        while node < end:
            tree[node] -= nbytes
            node += node & -node
        return self._put(nbytes)

    def since(self, position: int) -> int:
        """Bytes of the items from this position on."""
        tree, node = self._tree, position >> _BLOCK_BITS
        older = sum(self.sizes[node << _BLOCK_BITS : position])
        while node:
            older += tree[node]
            node &= node - 1
        return self.total - older

    def _put(self, nbytes: int) -> int:
        sizes = self.sizes
        position = len(sizes)
        sizes.append(nbytes)
        if not (position + 1) % _BLOCK:
            # The node of a full block covers the nodes that end just before it as well.
            tree, node = self._tree, len(self._tree)
            covered, first, below = sum(sizes[-_BLOCK:]), node & (node - 1), node - 1
            while below > first:
                covered += tree[below]
                below &= below - 1
            tree.append(covered)
        return position


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
        """The smallest capacity with so many hits, 0 for none. Raises ValueError for too many."""
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
    """The most that one cache may take: a process' part of the budget, else vLLM's own default,
    since no file may ask for more unless somebody says that the host has it.
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
      (see `mmcalib.derive.processor_cache`).
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
    """The smallest size for `share` of the hits that `allowed_gib` can give, 0 where nothing
    repeats. No smaller than `floor_bytes` or the largest request, and off where that is not
    allowed: vLLM fails requests for which a cache is too small.
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


@dataclass(frozen=True, slots=True)
class CacheFloor:
    """Per modality: how many items one request may carry, and the bytes of the largest of them."""

    items: Mapping[Modality, tuple[int, int]]

    @property
    def nbytes(self) -> int:
        """A cache of so many bytes never pushes out what the request at hand has found in it."""
        return sum(count * nbytes for count, nbytes in self.items.values())


def cache_floor(
    counts: Mapping[Modality, int], table: CostTable, plain: Budget, limit_tokens: int
) -> CacheFloor:
    """The floor under these counts, *computed* from the dummies of `plain`, which has no size
    hints; `limit_tokens` is what the encoder cache admits.
    """
    served = {modality: count for modality, count in counts.items() if count}
    return CacheFloor(
        {m: (count, largest_item_bytes(m, table, plain, limit_tokens))
         for m, count in served.items()}
    )  # fmt: skip


def within_context(
    counts: Mapping[Modality, int], table: CostTable, plain: Budget, limit_tokens: int
) -> dict[Modality, int]:
    """The counts, cut to the largest items that begin within `max_model_len`, by bytes a token."""
    found, left = dict(counts), plain.max_model_len
    sizes = {modality: _most_embeds(modality, plain, limit_tokens) for modality in counts}

    def rate(modality: Modality) -> float:
        return largest_item_bytes(modality, table, plain, limit_tokens) / sizes[modality]

    for modality in sorted(filter(sizes.__getitem__, counts), key=rate, reverse=True):
        found[modality] = min(counts[modality], math.ceil(left / sizes[modality]))
        left = max(0, left - found[modality] * sizes[modality])
    return found


def largest_item_bytes(
    modality: Modality, table: CostTable, plain: Budget, limit_tokens: int
) -> int:
    """Processed bytes of the largest admitted item: vLLM's dummy of most tokens, at least the
    corpus' largest. A dummy clip may have fewer frames than a loader keeps (Qwen2-VL's has 14): for
    videos, the most bytes a token times what the encoder cache admits.
    """
    costs = table.of(modality)
    dummy, most = plain.dummies.get(modality), _most_embeds(modality, plain, limit_tokens)
    found = [max(1, int(costs.tensor_bytes.max()))] if costs else []
    rates = [] if dummy is None or not dummy.embeds else [dummy.tensor_bytes / dummy.embeds]
    if dummy is not None:
        found.append(dummy.tensor_bytes)
    if modality == "video":
        some = costs.take(costs.embeds > 0)
        rates += [float((some.tensor_bytes / some.embeds).max(initial=0))]
    return max([*found, math.ceil(most * max(rates, default=0))], default=0)


def _most_embeds(modality: Modality, plain: Budget, limit_tokens: int) -> int:
    """vLLM's largest item, or a picture so slim that it exceeds the cap; of videos any that the
    cache admits: `Budget.largest_item` leaves out clips that no camera makes.
    """
    most = plain.max_tokens_per_item.get(modality, 0)
    if modality == "video" and most:
        return limit_tokens
    if modality == "image":
        # The slimmest keeps a token's height, and the length that its area leaves it, whatever the
        # cap: √(200 × cap) tokens, more than a cap below 200.
        return max(most, min(math.ceil(math.sqrt(QWEN_MOST_ASPECT * most)), limit_tokens))
    return most


def parts(floor: CacheFloor) -> Iterator[str]:
    """Such as `3 × image of 77.1 MB`."""
    for modality, (count, nbytes) in floor.items.items():
        yield f"{count} × {modality} of {nbytes / 1e6:,.1f} MB"


# A container gets 64 MiB of shared memory unless told otherwise. vLLM's workers and NCCL hand their
# buffers over there; it is a limit, and what nobody writes to takes nothing.
SHM_BYTES: Final = 8 * GIB
_MOST: Final = 1e9


def shm_bytes(config: Mapping[str, Any]) -> int:
    """The limit on shared memory: with `mm_processor_cache_type: shm` that cache is there, too."""
    shared = config.get("mm_processor_cache_type") == "shm"
    return SHM_BYTES + (_cache_bytes(config) if shared else 0)


def processor_caches_bytes(config: Mapping[str, Any]) -> int:
    """What the processor caches of a server may hold in main memory, by vLLM's own words."""
    if config.get("mm_processor_cache_type") == "shm":
        return 0
    servers = _figure(config, "data_parallel_size", 1)
    return round(_cache_bytes(config) * PROCESSOR_CACHES * servers)


def _cache_bytes(config: Mapping[str, Any]) -> int:
    return round(_figure(config, "mm_processor_cache_gb", PROCESSOR_CACHE_GIB) * GIB)


def _figure(config: Mapping[str, Any], name: str, default: float) -> float:
    """The default for what vLLM would not take either: a file may have been changed by hand."""
    given = config.get(name)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < _MOST:
        return default
    return given
