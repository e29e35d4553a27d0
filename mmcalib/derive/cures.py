"""Engine settings under which a configuration reserves what it may take (R4), by arithmetic; each
is tried before it is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.derive.demand import LanguageStep, Merge, PromptsStep, Shortfall, WorstStep
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class Engine:
    """Values of both settings that decide what one step may encode, and of the one that leaves room
    for it; None where it stays.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None

    @property
    def values(self) -> dict[str, int]:
        every = {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "kv_cache_memory_bytes": self.kv_cache_memory_bytes,
        }
        return {name: value for name, value in every.items() if value is not None}

    def on(self, engine_args: Mapping[str, Any]) -> dict[str, Any]:
        return {**engine_args, **self.values}


def smaller(found: Shortfall, budget: Budget, counts: Mapping[Modality, int]) -> Engine | None:
    """Less at once: fewer sequences where it is the corpus' own items that take more than dummies,
    else a smaller cache, of whole largest items; None where neither can be less.
    """
    room = found.reserved_bytes + found.slack_bytes
    match found.worst:
        case WorstStep(items=items) if items:
            count = _per_prompt(found.worst, counts)
            each = found.worst.peak_bytes / items
            seqs = int((room - found.worst.resident.nbytes) / each) // count if each else 0
            return Engine(max_num_seqs=seqs) if 0 < seqs < budget.max_num_seqs else None
        case WorstStep(tokens=tokens, kept_bytes=kept, peak_bytes=peak) if kept and peak <= room:
            # The step and the workspaces are of so many tokens, both of them.
            largest = max(budget.max_tokens_per_item.values(), default=1)
            batch = int(tokens * room / found.worst.nbytes) // largest * largest
            fits = largest <= batch < budget.max_num_batched_tokens
            return Engine(max_num_batched_tokens=batch) if fits else None
        case WorstStep(peak_bytes=peak) if peak > room:
            # It is not what stays resident: another modality, or an item larger than profiled.
            return None
        case PromptsStep() if seqs := _prompts_within(room, found.worst):
            return Engine(max_num_seqs=seqs) if seqs < budget.max_num_seqs else None
        case PromptsStep(tokens=tokens, profiled_bytes=profiled):
            largest = max(budget.max_tokens_per_item.values(), default=_BLOCK)
            taken = found.worst.nbytes
            share = room / taken
            if profiled >= found.reserved_bytes:
                # What is reserved is of as many tokens, and shrinks with the step.
                share = found.slack_bytes / max(1, taken - profiled)
            batch = _whole(int(tokens * share), largest)
            fits = 0 < batch < budget.max_num_batched_tokens
            return Engine(max_num_batched_tokens=batch) if fits else None
        case WorstStep() | LanguageStep() | Merge():
            # Of embeddings alone nothing is rounded to items.
            largest = max(budget.max_tokens_per_item.values(), default=1)
            each = found.worst.resident.bytes_per_token
            if not each:
                return None
            over = -(-(found.nbytes - found.slack_bytes) // each)
            whole = (budget.encoder_cache_size - over) // largest * largest
            batch = max(largest, whole)
            fits = batch < budget.max_num_batched_tokens
            return Engine(max_num_batched_tokens=batch) if fits else None


def larger(found: Shortfall, budget: Budget, counts: Mapping[Modality, int]) -> Engine | None:
    """More reserved: sequences whose dummies fill the step, or a step of more tokens, up to as many
    dummies as there may be items; None where it is that already.
    """
    largest = max(budget.max_tokens_per_item.values(), default=0)
    if not largest:
        return None
    match found.worst:
        case PromptsStep(prompts=prompts) if prompts > 1:
            return None
        case WorstStep(items=items) if items:
            seqs = -(-items // _per_prompt(found.worst, counts))
            largest = budget.max_tokens_per_item.get(found.worst.modality, largest)
            # What is reserved grows with the batch, or more slowly: then the next try takes more.
            short = max(found.worst.nbytes - found.slack_bytes, 1) / max(found.reserved_bytes, 1)
            enough = math.ceil(budget.max_num_batched_tokens * short / largest)
            batch = min(enough, seqs * _per_prompt(found.worst, counts)) * largest
            fewer = seqs if seqs < budget.max_num_seqs else None
            grows = batch > budget.max_num_batched_tokens
            return Engine(fewer, batch) if grows else None
        case WorstStep(peak_bytes=peak) if peak > found.reserved_bytes + found.slack_bytes:
            return None
        case WorstStep() | LanguageStep() | PromptsStep() | Merge():
            profiled = budget.profiled_modality
            count = counts.get(profiled, 1) if profiled else 1
            items = -(-budget.encoder_budget_tokens // largest)
            seqs = -(-items // (count or 1))
            return Engine(max_num_seqs=seqs) if seqs > budget.max_num_seqs else None


# Fewer sequences than this share of those that may come are no cure: a smaller step is.
_FEWEST: Final = 1 / 4


def _prompts_within(room: int, step: PromptsStep) -> int:
    """How many prompts find room, which bring as much each, whatever their length; 0 where those
    are too few.
    """
    if step.prompts < 2 or step.peak_bytes <= step.alone_bytes:
        return 0
    each = (step.peak_bytes - step.alone_bytes) / (step.prompts - 1)
    within = 1 + int((room - step.alone_bytes - step.resident.nbytes) // each)
    return within if within >= step.prompts * _FEWEST else 0


# What the sizes of compiled ranges and captured graphs are multiples of.
_BLOCK: Final = 256


def _whole(tokens: int, largest: int) -> int:
    """Of whole largest items; of fewer tokens than one, where an item may be prefilled in parts."""
    unit = largest if tokens >= largest else _BLOCK
    return tokens // unit * unit


def _per_prompt(step: WorstStep, counts: Mapping[Modality, int]) -> int:
    return counts.get(step.modality, 1) or 1
