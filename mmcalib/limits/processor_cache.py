"""The least safe size of vLLM's processor cache, and its hit rate by size.

vLLM looks up all items of a request, then stores the new ones. If these evict an item that the same
request found cached, it fails with HTTP 500, "Expected a cached item for mm_hash=..."
(`_merge_mm_kwargs` in vllm/multimodal/processing/processor.py and `get_and_update_item` in
vllm/multimodal/cache/lru.py of 0.32; vLLM PR 28525 assumes that a request fits).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mmcalib.domain.knobs import covering_count
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.limits.costs import CostTable
from mmcalib.releases.constants import MAX_ASPECT, PROCESSOR_CACHE_GIB, PROCESSOR_CACHES
from mmcalib.text import GIB, gib, whole_as_int


class Recency:
    """A list of sizes that grows at its end, with O(log n) sums from any position to the end.

    Positions count from 0; a moved item leaves 0 bytes. A Fenwick tree sums what has moved away:
    its nodes cover the positions after them, so that a new node begins with 0 bytes.
    """

    def __init__(self) -> None:
        # All bytes that were ever added before each position, and before the end.
        self._before = array("q", [0])
        self._moved = array("q", [0])

    def append(self, nbytes: int) -> int:
        """Add an item at the end; returns its position."""
        self._before.append(self._before[-1] + nbytes)
        self._moved.append(0)
        return len(self._before) - 2

    def move_to_end(self, position: int) -> int:
        """Move an item to the end and return its new position; other positions stay."""
        nbytes = self._before[position + 1] - self._before[position]
        node = position + 1
        while node:
            self._moved[node] += nbytes
            node &= node - 1
        return self.append(nbytes)

    def bytes_since(self, position: int) -> int:
        """Bytes of the items from this position on."""
        moved, node = 0, position + 1
        while node < len(self._moved):
            moved += self._moved[node]
            node += node & -node
        return self._before[-1] - self._before[position] - moved


# The last few percent of the hits can cost as much cache as all the others.
_NEARLY_ALL = 0.95

# Sizes are written in hundredths of a GiB.
STEPS_PER_GIB = 100


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Hits of one LRU cache as a function of its capacity in bytes.

    An access is one request's use of one item, even if the request names it several times. A cache
    of `capacities[i]` bytes hits `hits[i]` times, and so does any larger one below
    `capacities[i + 1]`. Both ascend; both are empty if nothing repeats. `largest_request_bytes`
    are the distinct items of the heaviest request together.
    """

    accesses: int
    distinct: int
    largest_request_bytes: int
    capacities: Sequence[int]
    hits: Sequence[int]

    @property
    def most_hits(self) -> int:
        """Hits of an unlimited cache: every access but the first of each key."""
        return self.accesses - self.distinct

    def hits_at(self, capacity_bytes: float) -> int:
        position = bisect_right(self.capacities, capacity_bytes)
        return self.hits[position - 1] if position else 0

    def rate_at(self, capacity_bytes: float) -> float:
        """Share of all accesses that this capacity hits."""
        return self.hits_at(capacity_bytes) / self.accesses if self.accesses else 0.0

    def capacity_for(self, hits: int) -> int:
        """The smallest capacity for `hits`, which are at most `most_hits`; 0 for none."""
        return self.capacities[bisect_left(self.hits, hits)] if hits else 0

    def points(self, most: int) -> list[tuple[int, float]]:
        """Up to `most` pairs (capacity, hit rate), evenly spaced in hits; the last has all hits."""
        steps = (math.ceil(self.most_hits * step / most) for step in range(1, most + 1))
        capacities = sorted({self.capacity_for(hits) for hits in steps if hits})
        return [(capacity, self.rate_at(capacity)) for capacity in capacities]


@dataclass(frozen=True, slots=True)
class CacheSize:
    """A size for `mm-processor-cache-gb` (GiB, 0 switches the cache off) and its hit rate.

    `total_bytes` is vLLM's limit over all processes. `allowed_gib` is the most for one process;
    if that is below `floor_bytes`, the largest admissible request, the cache is off.
    `floor_limited`: the hits need less than the floor. `wanted_gib` reaches the requested hit rate.
    """

    mm_processor_cache_gb: float
    hit_rate: float
    total_bytes: int
    floor_bytes: int
    floor_limited: bool
    allowed_gib: float
    wanted_gib: float
    wanted_hit_rate: float

    @property
    def is_limited(self) -> bool:
        """A larger allowance would give more hits."""
        return self.wanted_gib > self.allowed_gib


def allowed_gib(ram_budget_bytes: int | None) -> float:
    """The most for one cache: a process' share of the budget, or vLLM's default without one."""
    if ram_budget_bytes is None:
        # Only the user knows whether the host has more.
        return PROCESSOR_CACHE_GIB
    return max(ram_budget_bytes, 0) * STEPS_PER_GIB // (PROCESSOR_CACHES * GIB) / STEPS_PER_GIB


def round_up_gib(nbytes: int) -> float:
    """Round up to the next size that is written."""
    return -(-nbytes * STEPS_PER_GIB // GIB) / STEPS_PER_GIB


def hit_curve(requests: Iterable[Sequence[tuple[Hashable, int]]]) -> HitCurve:
    """Compute the hit curve of requests in order, in O(n log n): each the (content key, processed
    bytes) of its items in the order in which vLLM merges them.

    The rule: an item hits if the distinct items used since its last use, up to this request, and
    the item itself together fit the capacity. With one size per key an LRU cache always contains
    the most recent items that fit, and vLLM looks up all items of a request before it stores any
    (`_cached_apply_hf_processor`, vllm/multimodal/processing/processor.py of 0.32), so this is
    exact for every capacity that fits the largest request, and hits never fall as capacity grows.
    An item that one request names twice counts as one access: it is processed twice if new, and
    never if cached.

    vLLM's cache (`cachetools.LRUCache` by size, vllm/multimodal/cache) deviates in two cases:

    - Below the largest request the curve does not hold: a request may fail, and vLLM does not cache
      an item larger than the whole cache, which evicts nothing (0.23 raises "value too large").
    - It is the cache of one process. Each of several API servers has its own and gets its share of
      the requests; `mm_processor_cache_type: shm` evicts first in, first out.

    Sizes are positive, and the same for all accesses of one key.
    """
    recent = Recency()
    last: dict[Hashable, int] = {}
    heaviest = accesses = 0
    needed = array("q")
    for request in requests:
        latest = dict(reversed(request))
        needed.extend(recent.bytes_since(last[key]) for key in latest if key in last)
        for key in reversed(latest):
            nbytes, before = latest[key], last.get(key)
            last[key] = recent.append(nbytes) if before is None else recent.move_to_end(before)
        accesses += len(latest)
        heaviest = max(heaviest, sum(latest.values()))
    capacities, counts = np.unique(np.asarray(needed), return_counts=True)
    return HitCurve(
        accesses=accesses,
        distinct=len(last),
        largest_request_bytes=heaviest,
        capacities=array("q", capacities.tobytes()),
        hits=array("q", np.cumsum(counts).tobytes()),
    )


def choose_cache_size(
    curve: HitCurve, floor_bytes: int = 0, *, ram_budget_bytes: int | None = None
) -> CacheSize:
    """The smallest size for nearly all hits that `allowed_gib` can give, 0 if nothing repeats.
    At least `floor_bytes` and the largest request, and off if that is not allowed: vLLM fails
    requests that exceed the cache.
    """
    allowed = allowed_gib(ram_budget_bytes)
    least = max(floor_bytes, curve.largest_request_bytes)
    most = curve.hits_at(allowed * GIB) if least <= allowed * GIB else 0
    needed = curve.capacity_for(covering_count(_NEARLY_ALL, most))
    gib = round_up_gib(max(needed, least)) if needed else 0.0
    wanted = curve.capacity_for(covering_count(_NEARLY_ALL, curve.most_hits))
    wanted_gib = round_up_gib(max(wanted, least)) if wanted else 0.0
    return CacheSize(
        mm_processor_cache_gb=gib,
        hit_rate=curve.rate_at(gib * GIB),
        total_bytes=round(gib * GIB) * PROCESSOR_CACHES,
        floor_bytes=least,
        floor_limited=needed < least and gib > 0,
        allowed_gib=allowed,
        wanted_gib=wanted_gib,
        wanted_hit_rate=curve.rate_at(wanted_gib * GIB),
    )


@dataclass(frozen=True, slots=True)
class CacheFloor:
    """Per modality: the items that one request may contain, and the bytes of the largest."""

    items: Mapping[Modality, tuple[int, int]]

    @property
    def nbytes(self) -> int:
        """A cache of this size never evicts an item that the current request found in it."""
        return sum(count * nbytes for count, nbytes in self.items.values())

    def __str__(self) -> str:
        """Such as `3 × image of 77.1 MB + 1 × video of 9.0 MB = 0.22 GiB`."""
        items = self.items.items()
        parts = (f"{count} × {m} of {nbytes / 1e6:,.1f} MB" for m, (count, nbytes) in items)
        return f"{' + '.join(parts)} = {gib(self.nbytes)}"


def cache_floor(
    counts: Mapping[Modality, int], table: CostTable, plain: Budget, limit_tokens: int
) -> CacheFloor:
    """Compute the floor by the dummies of `plain`, a budget without size hints."""
    most = {m: largest_item_bytes(m, table, plain, limit_tokens) for m, n in counts.items() if n}
    return CacheFloor({modality: (counts[modality], nbytes) for modality, nbytes in most.items()})


def cut_to_context(
    counts: Mapping[Modality, int], table: CostTable, plain: Budget, limit_tokens: int
) -> dict[Modality, int]:
    """Cut the counts to the largest items that begin within `max_model_len`, by bytes per token."""
    cut, left = dict(counts), plain.max_model_len
    sizes = {modality: _most_embeds(modality, plain, limit_tokens) for modality in counts}

    def rate(modality: Modality) -> float:
        return largest_item_bytes(modality, table, plain, limit_tokens) / sizes[modality]

    for modality in sorted(filter(sizes.__getitem__, counts), key=rate, reverse=True):
        cut[modality] = min(counts[modality], math.ceil(left / sizes[modality]))
        left = max(0, left - cut[modality] * sizes[modality])
    return cut


def largest_item_bytes(
    modality: Modality, table: CostTable, plain: Budget, limit_tokens: int
) -> int:
    """Processed bytes of the largest admitted item: vLLM's dummy of most tokens, at least the
    corpus' largest. A dummy clip may have fewer frames than a loader returns (Qwen2-VL's has 14):
    for videos, the most bytes per token times the encoder cache's limit.
    """
    costs = table.columns_of(modality)
    dummy, most = plain.dummies.get(modality), _most_embeds(modality, plain, limit_tokens)
    sizes = [max(1, int(costs.tensor_bytes.max()))] if costs else []
    rates = [] if dummy is None or not dummy.embeds else [dummy.tensor_bytes / dummy.embeds]
    if dummy is not None:
        sizes.append(dummy.tensor_bytes)
    if modality == "video":
        some = costs.take(costs.embeds > 0)
        rates += [float((some.tensor_bytes / some.embeds).max(initial=0))]
    return max([*sizes, math.ceil(most * max(rates, default=0))], default=0)


def _most_embeds(modality: Modality, plain: Budget, limit_tokens: int) -> int:
    """vLLM's largest item, or an image narrow enough to exceed the cap; for video, anything that
    the cache admits: `Budget.largest_item` leaves out clips that no camera makes.
    """
    most = plain.max_tokens_per_item.get(modality, 0)
    if modality == "video" and most:
        return limit_tokens
    if modality == "image":
        # The narrowest is one token high, and as long as its area allows under any cap:
        # √(200 × cap) tokens, more than a cap below 200.
        return max(most, min(math.ceil(math.sqrt(MAX_ASPECT * most)), limit_tokens))
    return most


@dataclass(frozen=True, slots=True)
class SizedCache:
    """A size chosen by the hit `curve` of `requests` that vLLM would process. `floor` is the need
    of the largest allowed request; `times` requests use the item `often`; `complete`: whole log.
    """

    curve: HitCurve
    size: CacheSize
    floor: CacheFloor
    requests: int
    often: str
    times: int
    complete: bool

    @property
    def mm_processor_cache_gb(self) -> int | float:
        return whole_as_int(self.size.mm_processor_cache_gb)


@dataclass(frozen=True, slots=True)
class CappedCache:
    """The allowed size, used without a request order if vLLM's default is larger than allowed or
    smaller than the floor. `allowed_gib` as in `CacheSize`; `budgeted`: by a RAM budget.
    """

    mm_processor_cache_gb: int | float
    floor: CacheFloor
    allowed_gib: float
    budgeted: bool


@dataclass(frozen=True, slots=True)
class UnsizedCache:
    """The reason to keep vLLM's default."""

    reason: str


NOT_SIZED: Final = UnsizedCache("not sized")

DecidedCache = SizedCache | CappedCache | UnsizedCache


# Containers get 64 MiB of shared memory by default. vLLM's workers and NCCL exchange buffers there;
# this is a limit, and unused memory costs nothing.
SHM_BYTES: Final = 8 * GIB
_MOST: Final = 1e9


def shm_bytes(config: Mapping[str, Any]) -> int:
    """Limit on shared memory, including the cache with `mm_processor_cache_type: shm`."""
    shared = config.get("mm_processor_cache_type") == "shm"
    return SHM_BYTES + (_cache_bytes(config) if shared else 0)


def processor_caches_bytes(config: Mapping[str, Any]) -> int:
    """Main memory that a server's processor caches may take, by vLLM's own documentation."""
    if config.get("mm_processor_cache_type") == "shm":
        return 0
    servers = _number_at(config, "data_parallel_size", 1)
    return round(_cache_bytes(config) * PROCESSOR_CACHES * servers)


def _cache_bytes(config: Mapping[str, Any]) -> int:
    return round(_number_at(config, "mm_processor_cache_gb", PROCESSOR_CACHE_GIB) * GIB)


def _number_at(config: Mapping[str, Any], name: str, default: float) -> float:
    """Return the default for values that vLLM rejects too: the file may be edited by hand."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        return default
    return value
