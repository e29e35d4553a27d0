"""The size of vLLM's processor cache (R7), from what the requests use in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmcalib.census.accesses import Accesses
from mmcalib.census.shapes import Modality, Shape
from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import Count
from mmcalib.derive.mm_cache import (
    DEFAULT_GIB,
    GIB,
    CacheSize,
    HitCurve,
    affordable_gib,
    choose,
    hit_curve,
)
from mmcalib.derive.policy import Policy
from mmcalib.engine.messages import ModelOpened

# As vLLM's renderer collects them (`_resolve_items`, vllm/renderers/chat_utils.py of 0.32).
_MERGED: tuple[Modality, ...] = ("image", "audio", "video")


@dataclass(frozen=True, slots=True)
class SizedCache:
    """A size and what it was derived from: `requests` that vLLM would process.

    `often` is the item that most of them use, `times` how many do; `complete`: the log was not
    too long to be read to its end.
    """

    curve: HitCurve
    size: CacheSize
    requests: int
    often: str
    times: int
    complete: bool

    @property
    def mm_processor_cache_gb(self) -> int | float:
        return _plain(self.size.mm_processor_cache_gb)


@dataclass(frozen=True, slots=True)
class CappedCache:
    """What a RAM budget allows where no order of requests says what would help."""

    gib: float
    largest_request_bytes: int

    @property
    def mm_processor_cache_gb(self) -> int | float:
        return _plain(self.gib)


def _plain(gib: float) -> int | float:
    """As it is written: 0 rather than 0.0."""
    return int(gib) if gib.is_integer() else gib


def size_cache(
    accesses: Accesses,
    table: CostTable,
    counts: Mapping[Modality, Count],
    opened: ModelOpened,
    policy: Policy,
) -> SizedCache | CappedCache | str:
    """The size for the requests that the limits admit, or why none can be derived.

    An item takes the bytes of its processed tensors under the chosen setting; vLLM counts no more
    (`get_item_size`, vllm/multimodal/cache/base.py of 0.32).
    """
    if opened.encoder_decoder:
        # vLLM sets mm_processor_cache_gb to 0 for them (vllm/config/model.py, 0.32).
        return "vLLM keeps no processed items of encoder-decoder models"
    if not accesses.ends and policy.ram_budget_bytes is not None:
        allowed = affordable_gib(policy.ram_budget_bytes)
        if allowed < DEFAULT_GIB:
            largest = sum(c.value * _largest(m, table) for m, c in counts.items())
            return CappedCache(allowed if largest <= allowed * GIB else 0.0, largest)
    if not accesses.ends:
        return "no request order given: vLLM's default of 4 GiB stays; --requests gives one"
    served = [r for r in accesses.requests() if _is_served(r, accesses, table, counts)]
    if not served:
        return "no request that the limits admit: vLLM's default of 4 GiB stays"
    sizes = [_bytes(shape, table) for shape, _ in accesses.items]
    curve = hit_curve(
        [(index, sizes[index]) for index in _as_merged(request, accesses)] for request in served
    )
    # Of equals the one that came first.
    often, times = Counter(index for request in served for index in set(request)).most_common(1)[0]
    return SizedCache(
        curve=curve,
        size=choose(curve, ram_budget_bytes=policy.ram_budget_bytes),
        requests=len(served),
        often=accesses.items[often][1],
        times=times,
        complete=accesses.complete,
    )


def _is_served(
    request: Sequence[int],
    accesses: Accesses,
    table: CostTable,
    counts: Mapping[Modality, Count],
) -> bool:
    """What vLLM rejects or fails on leaves nothing in its cache."""
    shapes = [accesses.items[index][0] for index in request]
    carried = Counter(shape.modality for shape in shapes)
    return all(shape in table.costs for shape in shapes) and all(
        modality in counts and count <= counts[modality].value
        for modality, count in carried.items()
    )


def _bytes(shape: Shape, table: CostTable) -> int:
    cost = table.costs.get(shape)
    return max(1, cost.tensor_bytes) if cost else 1


def _largest(modality: Modality, table: CostTable) -> int:
    return max((cost.tensor_bytes for cost in table.of(modality)), default=0)


def _as_merged(request: Sequence[int], accesses: Accesses) -> list[int]:
    """In the order in which vLLM goes through the items of a chat, whatever theirs is there."""
    return sorted(request, key=lambda index: _MERGED.index(accesses.items[index][0].modality))
