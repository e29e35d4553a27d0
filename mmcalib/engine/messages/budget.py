"""vLLM's encoder budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class AskBudget:
    """vLLM's own MultiModalBudget for these engine arguments (underscored names).

    `build_dummy` also builds a dummy item of each modality, which may take gigabytes;
    `only_profiled` leaves out those that the profile does not run.
    """

    engine_args: dict[str, Any]
    build_dummy: bool
    only_profiled: bool = False
    kind: Literal["ask_budget"] = "ask_budget"


@dataclass(frozen=True, slots=True)
class Dummy:
    """The item that vLLM profiles with: its embeds, and its size as the dummy builder made it."""

    embeds: int
    tensor_bytes: int
    size: dict[str, int]


@dataclass(frozen=True, slots=True)
class Budget:
    """Encoder budget in tokens, as vLLM computes it, and what its profile would run.

    Per modality: `max_tokens_per_item`, `max_items_per_prompt`, `max_items_per_batch`. The profile
    runs `profiled_items` of `profiled_modality`; `dummies` holds what each such item costs.
    """

    encoder_compute_budget: int
    encoder_cache_size: int
    max_tokens_per_item: dict[str, int]
    max_items_per_prompt: dict[str, int]
    max_items_per_batch: dict[str, int]
    profiled_modality: str | None
    profiled_items: int
    dummies: dict[str, Dummy]
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    kind: Literal["budget"] = "budget"

    @property
    def encoder_budget_tokens(self) -> int:
        """What one step may encode: the scheduler heeds both limits."""
        return min(self.encoder_compute_budget, self.encoder_cache_size)
