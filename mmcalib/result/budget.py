"""vLLM's encoder budget under a configuration, beside that of its defaults."""

from __future__ import annotations

from pydantic import Field

from mmcalib.domain.label import Label
from mmcalib.result.part import DocumentPart


class EncoderBudget(DocumentPart):
    """Tokens, as vLLM's MultiModalBudget has them for one configuration; `resident_items` of the
    corpus' largest fit into its encoder cache at once. `max_model_len` is the context that vLLM
    arrives at, None in documents of before.
    """

    encoder_budget_tokens: int
    max_tokens_per_item: dict[str, int]
    items_per_batch: dict[str, int]
    profiled_modality: str | None
    profiled_items: int
    profiled_tokens: int | None
    worst_step_tokens: int | None
    adequacy: float | None
    max_num_batched_tokens: int
    max_model_len: int | None = None
    resident_items: dict[str, int] = Field(default_factory=dict)
    label: Label = "computed"


class Budgets(DocumentPart):
    """`yours` is of the configuration that the user gave, None where vLLM refuses it."""

    default: EncoderBudget
    calibrated: EncoderBudget
    yours: EncoderBudget | None = None
