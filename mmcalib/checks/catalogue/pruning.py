"""Trap of `video_pruning_rate`: the scheduler counts what is kept, the encoder runs on all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line
from mmcalib.checks.trap import Figures, Taken, Trap, TrapRule, size

PRUNED_RESERVED = CheckId("pruned videos reserved")

RATE = "video_pruning_rate"


def pruning(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """A prompt has placeholders for the kept tokens alone (`compute_retained_tokens_count`,
    vllm/multimodal/video_prune/evs.py of 0.32), and these are what fills the encoder budget; models
    prune what they have encoded (`_postprocess_video_embeds_evs`, qwen2_5_vl.py and qwen3_vl.py).
    """
    rate = engine_args.get(RATE) or 0
    if not rate or not known.counts.get("video"):
        return None
    times, limit = 1 / (1 - rate), known.budget.encoder_budget_tokens
    step = known.step_bytes.get("video")
    more = None if step is None else round(step * (times - 1))
    detail = (
        f"{RATE} {rate:g}: a step of {limit:,} kept tokens encodes up to {times:.2f} times as "
        f"many, {int(limit * times):,}, and the profile does not know of it{size(more)}: vLLM "
        "budgets by what is kept (compute_retained_tokens_count, "
        "vllm/multimodal/video_prune/evs.py) and encodes all"
    )
    batch = int(known.budget.max_num_batched_tokens * (1 - rate))
    remedy = (
        f"{line('max_num_batched_tokens', batch)} where no item takes more, fewer "
        "max-num-seqs, or a lower gpu-memory-utilization, which leaves room without reserving it"
    )
    taken = None if more is None else Taken(f"frames that {RATE} drops", more)
    return Trap(Check(PRUNED_RESERVED, "warn", detail, remedy), taken)


TRAPS = (TrapRule(20, pruning),)
