"""Memory of serving above the loaded model, and computed engine settings that reserve it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from mmcalib.domain.memory import Budget, RehearsedMemory, floor_utilization
from mmcalib.domain.shapes import Modality
from mmcalib.limits.costs import CostTable, ItemCost
from mmcalib.limits.values import MIN_RESERVE_RATIO
from mmcalib.logs.starts import OutOfMemory, Phase
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.text import MIB


@dataclass(frozen=True, slots=True)
class Resident:
    """Outputs of items that the encoder cache keeps: those of finished requests stay until they
    are evicted (`EncoderCacheManager`, vllm/v1/core/encoder_cache_manager.py).
    """

    tokens: int = 0
    bytes_per_token: int = 0

    @property
    def nbytes(self) -> int:
        return self.tokens * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class Demand:
    """A step of this many tokens: its peak above the model, what is resident besides, and the
    workspaces that other kernels keep.
    """

    tokens: int
    peak_bytes: int
    resident: Resident = field(default_factory=Resident)
    kept_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.peak_bytes + self.kept_bytes + self.resident.nbytes


@dataclass(frozen=True, slots=True)
class WorstStep(Demand):
    """The most that one step may encode of one modality.

    If the corpus' own items take more than dummies of as many tokens, it has `items` of `exemplar`.
    """

    modality: Modality = field(kw_only=True)
    items: int = 0
    exemplar: str = ""


@dataclass(frozen=True, slots=True)
class LanguageStep(Demand):
    """A full step of the language model and its sampler, with a full encoder cache."""


@dataclass(frozen=True, slots=True)
class PromptsStep(Demand):
    """A full step of the language model as serving runs it, with `prompts`, for a model with
    recurrent layers, which vLLM's profile skips; one prompt of as many tokens takes `alone_bytes`.
    """

    prompts: int = field(kw_only=True)
    alone_bytes: int = field(kw_only=True)
    profiled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MergeStep(Demand):
    """A step full of encoder outputs, written into the embeddings of the text."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Bytes that the costliest demand takes above the reserve: the profile's plus `spare_bytes` of
    KV cache. `outside_bytes` of the GPU's `total_bytes` stay free outside the `requested_bytes`
    that vLLM divides; `kv_cache_bytes` of these are its KV cache.
    """

    reserved_bytes: int
    worst: Demand
    outside_bytes: int
    spare_bytes: int = 0
    requested_bytes: int = 0
    total_bytes: int = 0
    kv_cache_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.worst.nbytes - self.reserved_bytes

    @property
    def slack_bytes(self) -> int:
        """The part of vLLM's own slack that is free outside the reserve."""
        return min(VLLM_SLACK_BYTES, max(0, self.outside_bytes))

    @property
    def passes(self) -> bool:
        return self.nbytes <= self.slack_bytes

    @property
    def is_tight(self) -> bool:
        """True if less than vLLM's own slack remains besides the demand."""
        left = self.slack_bytes - self.nbytes
        return self.slack_bytes < VLLM_SLACK_BYTES and left < VLLM_SLACK_BYTES

    @property
    def holds(self) -> bool:
        """True if the demand has room, in the reserve or outside it."""
        return self.nbytes <= max(0, self.outside_bytes)

    def fitting_utilization(self, spare_bytes: int = 0) -> float:
        """The `gpu_memory_utilization` in hundredths with which the demand and so many bytes more
        have room outside vLLM's share; 0 if none does.
        """
        free = self.requested_bytes + self.outside_bytes - spare_bytes
        return floor_utilization(free - self.nbytes, self.total_bytes)

    @property
    def unreserved_bytes(self) -> int:
        """Bytes that vLLM never reserves, if they explain the whole shortfall; else 0."""
        nbytes = 0
        match self.worst:
            case WorstStep(kept_bytes=kept):
                nbytes = kept
            case PromptsStep(peak_bytes=peak, profiled_bytes=profiled) if profiled:
                nbytes = peak - profiled
        return nbytes if self.nbytes - nbytes <= self.slack_bytes else 0


@dataclass(frozen=True, slots=True)
class ObservedOom:
    """A server that ran out of GPU memory, compared with a rehearsal of its own configuration.

    `outside_torch_bytes` = total − free − PyTorch's memory, allocated or cached. `step_bytes` is
    what the step used above the model and the KV cache, plus what it wanted: as much as
    `step_tokens` of `step_modality` take, `step_items` of its largest; one step encodes at most
    `step_limit_tokens` (None and 0: not an encoder step, or missing from the message).
    `lacking_bytes` is the room that it needs beyond what it had, `spare_bytes` what is rehearsed.
    """

    phase: Phase | None
    wanted_bytes: int | None
    free_bytes: int | None
    outside_torch_bytes: int | None
    step_bytes: int | None
    step_modality: Modality | None
    step_tokens: int
    step_items: int
    step_limit_tokens: int
    lacking_bytes: int
    spare_bytes: int

    def missing_bytes(self, memory: RehearsedMemory, shortfall: Shortfall | None) -> int:
        """Bytes missing in another configuration, by its rehearsal; at most 0 if it fits."""
        return self.lacking_bytes + self.spare_bytes - _spare(self.phase, memory, shortfall)


def _spare(phase: Phase | None, memory: RehearsedMemory, shortfall: Shortfall | None) -> int:
    """Free bytes of a rehearsal besides the profile or, with a KV cache, the costliest demand."""
    if memory.division.is_before_kv_cache(phase):
        used = memory.weights_bytes + memory.buffers_bytes + memory.activation_peak_bytes
        return memory.total_bytes - used
    return memory.outside_bytes + memory.non_torch_bytes - (shortfall.nbytes if shortfall else 0)


def compare_oom(
    cause: OutOfMemory,
    phase: Phase | None,
    memory: RehearsedMemory,
    shortfall: Shortfall | None,
    demands: Iterable[Demand],
    kv_cache_bytes: int,
) -> ObservedOom:
    """Compare PyTorch's message with `memory`, the rehearsal of that configuration."""
    wanted, free, allocated = cause.tried_bytes, cause.free_bytes, cause.allocated_bytes
    outside = step = None
    if cause.total_bytes is not None and free is not None and allocated is not None:
        outside = cause.total_bytes - free - allocated - (cause.unallocated_bytes or 0)
    serving = not memory.division.is_before_kv_cache(phase)
    if serving and allocated is not None and wanted is not None:
        graphs = cause.graph_pools_bytes
        static = memory.weights_bytes + memory.buffers_bytes + max(kv_cache_bytes, 0)
        static += memory.cudagraph_bytes if graphs is None else graphs
        step = max(0, allocated + wanted - static) or None
    lacking = max(0, (wanted or 0) - (free or 0)) + VLLM_SLACK_BYTES
    if step is not None and shortfall is not None:
        lacking += max(0, shortfall.worst.nbytes - step)
    encodes = (one for one in demands if isinstance(one, WorstStep))
    of = max(encodes, key=lambda one: one.nbytes, default=None)
    if phase is not None and "encoder" not in phase:
        of = None
    tokens = items = 0
    if of is not None and step is not None and memory.budget is not None:
        tokens = round(step * of.tokens / of.nbytes)
        items = -(-tokens // max(1, memory.budget.max_tokens_per_item.get(of.modality, 1)))
    return ObservedOom(
        phase=phase,
        wanted_bytes=wanted,
        free_bytes=free,
        outside_torch_bytes=None if outside is None else max(0, outside),
        step_bytes=step,
        step_modality=of.modality if tokens and of else None,
        step_tokens=tokens,
        step_items=items,
        step_limit_tokens=of.tokens if tokens and of else 0,
        lacking_bytes=lacking,
        spare_bytes=_spare(phase, memory, shortfall),
    )


@dataclass(frozen=True, slots=True)
class RetainedStorage:
    """Storage of at most `tokens` stays alive for a cache of `cache_tokens`, in `batches` with at
    least one cached item each. `known`: the requests' order tells which items return.
    """

    tokens: int
    cache_tokens: int
    batches: int
    known: bool


def bound_retained_storage(
    sizes: Iterable[int], cache_tokens: int, batch_tokens: int, *, known: bool
) -> RetainedStorage:
    """Bound the storage that the encoder cache keeps alive. `sizes` are the embeds of the distinct
    items that may stay while others come and go; one batch has at most `batch_tokens`.

    When a batch is encoded the cache contains it whole, and at least one item of each batch that
    is still alive later: so the j-th has the room that the j smallest items before it leave. Items
    never requested again leave in the order of arrival, and pin at most one batch more.
    """
    spent, tokens, batches = 0, 0, 0
    for size in sorted(sizes):
        most = min(batch_tokens, cache_tokens - spent)
        if most < size:
            break
        tokens += most
        batches += 1
        spent += size
    rest = min(batch_tokens, cache_tokens) + cache_tokens - spent if known else 0
    return RetainedStorage(max(tokens + rest, cache_tokens), cache_tokens, batches, known)


@dataclass(frozen=True, slots=True)
class Excess:
    """One step may encode `items` like `cost`, whose tensors are `times` those of a full step of
    vLLM's dummies. `max_num_seqs` would keep it to these; 0 if one prompt already exceeds them.

    vLLM limits a step by tokens. A processor that pads short items, or merges the tokens of many
    tiles, passes the encoder more per token than the dummy does.
    """

    modality: Modality
    cost: ItemCost
    items: int
    times: float
    max_num_seqs: int


def find_excesses(
    table: CostTable, budget: Budget, plain: Budget, counts: Mapping[Modality, int]
) -> Iterator[Excess]:
    """Per modality the costliest step beyond a profile's slack; `plain`: a budget without hints."""
    limit = budget.encoder_budget_tokens
    for modality in table.modalities():
        count, dummy = counts.get(modality, 0), plain.dummies.get(modality)
        if not count or dummy is None or not dummy.embeds or not dummy.tensor_bytes:
            continue
        at_once = budget.max_num_seqs * count
        profiled_bytes = min(limit / dummy.embeds, at_once) * dummy.tensor_bytes
        costs = table.columns_of(modality)
        costs = costs.take(costs.embeds > 0)
        if not costs:
            continue
        most = np.minimum(limit // costs.embeds, at_once) * costs.tensor_bytes
        worst = max(costs.take(most == most.max()), key=lambda cost: cost.exemplar)
        items, nbytes = min(limit // worst.embeds, at_once), int(most.max())
        if profiled_bytes < MIN_RESERVE_RATIO * nbytes:
            fitting = int(profiled_bytes / (worst.tensor_bytes * count))
            yield Excess(modality, worst, items, nbytes / profiled_bytes, fitting)


# Engine arguments that decide what a step may encode or has room for; none if nothing helps.
Values = dict[str, Any]


def shrink_step(shortfall: Shortfall, budget: Budget, counts: Mapping[Modality, int]) -> Values:
    """Lower the demand: fewer sequences of own items, else a smaller cache."""
    room = shortfall.reserved_bytes + shortfall.slack_bytes
    match worst := shortfall.worst:
        case WorstStep(items=items) if items:
            count = _per_prompt(worst, counts)
            each = worst.peak_bytes / items
            seqs = int((room - worst.resident.nbytes) / each) // count if each else 0
            return {"max_num_seqs": seqs} if 0 < seqs < budget.max_num_seqs else {}
        case WorstStep(tokens=tokens, kept_bytes=kept, peak_bytes=peak) if kept and peak <= room:
            # Both the step and the workspaces scale with the tokens.
            largest = max(budget.max_tokens_per_item.values(), default=1)
            batch = int(tokens * room / worst.nbytes) // largest * largest
        case WorstStep(peak_bytes=peak) if peak > room:
            # Residents are not the cause: another modality, or an item larger than profiled.
            return {}
        case PromptsStep() if seqs := _prompts_within(room, worst):
            return {"max_num_seqs": seqs} if seqs < budget.max_num_seqs else {}
        case PromptsStep(tokens=tokens, profiled_bytes=profiled):
            largest = max(budget.max_tokens_per_item.values(), default=_BLOCK)
            share = room / worst.nbytes
            if profiled >= shortfall.reserved_bytes:
                # The reserve is for as many tokens, and shrinks with the step.
                share = shortfall.slack_bytes / max(1, worst.nbytes - profiled)
            fitting = int(tokens * share)
            # Whole largest items, or blocks if an item may be prefilled in parts.
            unit = largest if fitting >= largest else _BLOCK
            batch = fitting // unit * unit
        case _:
            # Embeddings alone need no rounding to items.
            largest = max(budget.max_tokens_per_item.values(), default=1)
            if not (each := worst.resident.bytes_per_token):
                return {}
            over = -(-(shortfall.nbytes - shortfall.slack_bytes) // each)
            batch = max(largest, (budget.encoder_cache_size - over) // largest * largest)
    return {"max_num_batched_tokens": batch} if 0 < batch < budget.max_num_batched_tokens else {}


def raise_reserve(shortfall: Shortfall, budget: Budget, counts: Mapping[Modality, int]) -> Values:
    """Raise the reserve: sequences, or a step, full of dummies; nothing if it is full already."""
    largest = max(budget.max_tokens_per_item.values(), default=0)
    if not largest:
        return {}
    match worst := shortfall.worst:
        case PromptsStep(prompts=prompts) if prompts > 1:
            return {}
        case WorstStep(items=items) if items:
            seqs = -(-items // _per_prompt(worst, counts))
            largest = budget.max_tokens_per_item.get(worst.modality, largest)
            # The reserve grows with the batch, or more slowly: then the next try takes more.
            short = max(worst.nbytes - shortfall.slack_bytes, 1) / max(shortfall.reserved_bytes, 1)
            enough = math.ceil(budget.max_num_batched_tokens * short / largest)
            batch = min(enough, seqs * _per_prompt(worst, counts)) * largest
            fewer = {"max_num_seqs": seqs} if seqs < budget.max_num_seqs else {}
            grows = batch > budget.max_num_batched_tokens
            return {**fewer, "max_num_batched_tokens": batch} if grows else {}
        case WorstStep(peak_bytes=peak) if peak > shortfall.reserved_bytes + shortfall.slack_bytes:
            return {}
        case _:
            profiled = budget.profiled_modality
            count = counts.get(profiled, 1) if profiled else 1
            items = -(-budget.encoder_budget_tokens // largest)
            seqs = -(-items // (count or 1))
            return {"max_num_seqs": seqs} if seqs > budget.max_num_seqs else {}


# Fewer sequences at once cost more than KV cache does.
FEW: Final = 16


def leave_room(
    shortfall: Shortfall, budget: Budget, counts: Mapping[Modality, int], least: int = FEW
) -> Values:
    """Leave the demand free outside vLLM's share of the GPU. If all sequences would take more than
    half of the KV cache, first allow only those that leave half, if these are not below `least`.
    """
    half = _sequences_within(shortfall.kv_cache_bytes // 2, shortfall, budget, counts)
    if half >= least:
        return {"max_num_seqs": half}
    utilization = shortfall.fitting_utilization(VLLM_SLACK_BYTES)
    return {"gpu_memory_utilization": utilization} if utilization > 0 else {}


allow_few = partial(leave_room, least=1)


def use_free(shortfall: Shortfall, budget: Budget, counts: Mapping[Modality, int]) -> Values:
    """Allow the sequences whose step has room outside vLLM's share, unless they are few."""
    seqs = _sequences_within(shortfall.outside_bytes - VLLM_SLACK_BYTES, shortfall, budget, counts)
    return {"max_num_seqs": seqs} if seqs >= FEW else {}


def _sequences_within(
    more: int, shortfall: Shortfall, budget: Budget, counts: Mapping[Modality, int]
) -> int:
    """Return how many sequences have a step within the reserve and `more`; 0 if all have."""
    worst = shortfall.worst
    if not isinstance(worst, WorstStep) or not worst.peak_bytes:
        return 0
    room = shortfall.reserved_bytes + more - worst.resident.nbytes
    largest = budget.max_tokens_per_item.get(worst.modality) or worst.tokens or 1
    count, items = _per_prompt(worst, counts), worst.items or worst.tokens // largest
    seqs = max(1, int(room * items / worst.peak_bytes) // count)
    return seqs if seqs < budget.max_num_seqs and seqs * count < items else 0


# Below this share of the possible sequences, shrink the step instead.
_FEWEST: Final = 1 / 4


def _prompts_within(room: int, step: PromptsStep) -> int:
    """Number of equal prompts that have room; 0 if too few."""
    if step.prompts < 2 or step.peak_bytes <= step.alone_bytes:
        return 0
    each = (step.peak_bytes - step.alone_bytes) / (step.prompts - 1)
    within = 1 + int((room - step.alone_bytes - step.resident.nbytes) // each)
    return within if within >= step.prompts * _FEWEST else 0


# Sizes of compiled ranges and captured graphs are multiples of this.
_BLOCK: Final = 256


def _per_prompt(step: WorstStep, counts: Mapping[Modality, int]) -> int:
    return counts.get(step.modality, 1) or 1


def thin_steps(peaks: Sequence[int], most: int) -> Iterator[int]:
    """Thin to at most `most` steps: yield the number of the highest of each stretch."""
    length = -(-len(peaks) // most) or 1
    for start in range(0, len(peaks), length):
        yield max(range(start, min(start + length, len(peaks))), key=peaks.__getitem__)


@dataclass(frozen=True, slots=True)
class FixedKvCache:
    """A KV cache of fixed size: `left_bytes` less `spared_bytes` for steps above the reserve."""

    left_bytes: int
    kv_cache_memory_bytes: int
    capture_sizes: tuple[int, ...]
    spared_bytes: int
    effect: str

    @property
    def values(self) -> dict[str, Any]:
        sizes = {"cudagraph_capture_sizes": list(self.capture_sizes)} if self.capture_sizes else {}
        return {"kv_cache_memory_bytes": self.kv_cache_memory_bytes, **sizes}


def fix_kv_cache_size(memory: RehearsedMemory, spared_bytes: int = 0) -> FixedKvCache | None:
    """Fix the KV cache at whole MiB of what is left, less vLLM's own slack; None if nothing is."""
    left = memory.kv_cache_bytes - VLLM_SLACK_BYTES - spared_bytes
    if left < MIB or memory.kv_cache_tokens is None:
        return None
    size, effect = left // MIB * MIB, "vLLM then ignores gpu_memory_utilization"
    if memory.division.is_extensible:
        effect += ", and no longer sizes an extensible KV cache after warm-up"
    return FixedKvCache(memory.kv_cache_bytes, size, memory.capture_sizes, spared_bytes, effect)
