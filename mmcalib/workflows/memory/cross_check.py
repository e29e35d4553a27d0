"""The encoder's peak by formula, beside the rehearsed one: two ways to one number."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mmcalib.domain.budget import Budget
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.models import read_config
from mmcalib.models.encoder import encoder_of
from mmcalib.wording import gib

# Both must differ before it is worth a word: the formula leaves out workspaces and odd tensors.
DIFFERS: Final = 0.10
SLACK_BYTES: Final = 64 << 20


def estimate_bytes(budget: Budget | None, model_path: str) -> int | None:
    """The peak of what vLLM says that it profiles, by the checkpoint's config alone; None for a
    family without a formula.
    """
    if budget is None or budget.profiled_modality is None:
        return None
    encoder = encoder_of(read_config(Path(model_path)), budget.profiled_modality)
    if encoder is None:
        return None
    tokens = budget.max_tokens_per_item[budget.profiled_modality]
    return encoder.peak_bytes(budget.profiled_items, tokens)


def disagreement(found: Rehearsed, model_path: str) -> str:
    """What to say where formula and rehearsal differ by more than a tenth; else nothing."""
    budget = found.budget
    estimate = estimate_bytes(budget, model_path)
    rehearsed = next((p.peak_bytes for p in found.phases if p.name == "encoder"), None)
    if estimate is None or rehearsed is None:
        return ""
    off = estimate - rehearsed
    if abs(off) <= max(DIFFERS * rehearsed, SLACK_BYTES):
        return ""
    words = (
        f"the encoder's peak by formula is {gib(estimate)}, rehearsed {gib(rehearsed)} "
        f"({off / rehearsed:+.0%})"
    )
    if off > rehearsed and budget is not None and budget.profiled_modality is not None:
        modality = budget.profiled_modality
        words += (
            f": vLLM's dummy {modality} costs less than the "
            f"{budget.max_tokens_per_item[modality]:,} tokens that it budgets for"
        )
    return words
