"""Size the processor cache for the requests that a decision admits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress

from mmcalib.census.accesses import Accesses
from mmcalib.checks.facts import Decision
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.limits.costs import CostTable
from mmcalib.limits.policy import Policy
from mmcalib.limits.processor_cache import (
    CacheFloor,
    CappedCache,
    DecidedCache,
    SizedCache,
    UnsizedCache,
    allowed_gib,
    cache_floor,
    choose_cache_size,
    hit_curve,
    round_up_gib,
)
from mmcalib.limits.values import Count
from mmcalib.releases.constants import ITEM_ORDER, PROCESSOR_CACHE_GIB
from mmcalib.text import GIB, whole_as_int


def with_cache(
    decision: Decision, accesses: Accesses, opened: ModelInfo, policy: Policy
) -> Decision:
    """Return the decision with a processor cache, or with the reason for vLLM's default."""
    admitted, limit = decision.items_per_prompt, decision.budget.encoder_budget_tokens
    floor = cache_floor(admitted, decision.table, decision.plain, limit)
    cache = size_cache(accesses, decision.table, decision.counts, floor, opened, policy)
    if isinstance(cache, UnsizedCache):
        return replace(decision, cache=cache)
    args = {**decision.engine_args, "mm_processor_cache_gb": cache.mm_processor_cache_gb}
    return replace(decision, cache=cache, engine_args=args)


def size_cache(
    accesses: Accesses,
    table: CostTable,
    counts: Mapping[Modality, Count],
    floor: CacheFloor,
    opened: ModelInfo,
    policy: Policy,
) -> DecidedCache:
    """Size the cache for the requests that the limits admit, or give a reason for vLLM's default.

    An item takes the bytes of its processed tensors under the chosen setting, as in vLLM's
    `get_item_size` (vllm/multimodal/cache/base.py of 0.32).
    """
    if opened.encoder_decoder:
        # vLLM sets mm_processor_cache_gb to 0 for them (vllm/config/model.py, 0.32).
        return UnsizedCache("vLLM caches no processed items of encoder-decoder models")

    def is_served(request: Sequence[int]) -> bool:
        """Return whether vLLM serves it; rejected requests leave nothing in the cache."""
        shapes = [accesses.items[index][0] for index in request]
        carried = Counter(shape.modality for shape in shapes)
        return all(shape in table.costs for shape in shapes) and all(
            modality in counts and count <= counts[modality].value
            for modality, count in carried.items()
        )

    # One byte per request: a million lists of items would take a hundred bytes each.
    served = bytearray(map(is_served, accesses.requests()))
    if not any(served):
        why = "the limits admit no request" if accesses.ends else "no request order given"
        hint = "" if accesses.ends else "; --requests gives one"
        reason = f"{why}: the cache stays at vLLM's {PROCESSOR_CACHE_GIB} GiB{hint}"
        return _cap_cache(floor, policy) or UnsizedCache(reason)
    costs = (table.costs.get(shape) for shape, _ in accesses.items)
    sizes = [max(1, cost.tensor_bytes) if cost else 1 for cost in costs]
    # vLLM processes the items of a chat in this order, not in that of the chat.
    ranks = [ITEM_ORDER.index(shape.modality) for shape, _ in accesses.items]
    curve = hit_curve(
        [(index, sizes[index]) for index in sorted(request, key=ranks.__getitem__)]
        for request in compress(accesses.requests(), served)
    )
    # `most_common` returns the first of equally frequent items.
    used = (set(request) for request in compress(accesses.requests(), served))
    often, times = Counter(chain.from_iterable(used)).most_common(1)[0]
    return SizedCache(
        curve=curve,
        size=choose_cache_size(curve, floor.nbytes, ram_budget_bytes=policy.ram_budget_bytes),
        floor=floor,
        requests=sum(served),
        often=accesses.items[often][1],
        times=times,
        complete=accesses.complete,
    )


def _cap_cache(floor: CacheFloor, policy: Policy) -> CappedCache | None:
    """Cap the cache, unless vLLM's default is allowed and holds any request."""
    allowed = allowed_gib(policy.ram_budget_bytes)
    if floor.nbytes <= PROCESSOR_CACHE_GIB * GIB <= allowed * GIB:
        return None
    least = round_up_gib(floor.nbytes)
    gib = max(min(allowed, PROCESSOR_CACHE_GIB), least) if least <= allowed else 0.0
    budgeted = policy.ram_budget_bytes is not None
    return CappedCache(whole_as_int(gib), floor, allowed, budgeted)
