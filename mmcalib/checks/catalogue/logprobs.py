"""Trap of `max_logprobs`: a request that asks for prompt_logprobs needs logits of a whole chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line
from mmcalib.checks.trap import Figures, Taken, Trap, TrapRule, size
from mmcalib.releases.constants import LOGIT_BYTES, V2_LOGPROBS_TOKENS
from mmcalib.wording import gib

LOGPROBS_RESERVED = CheckId("prompt_logprobs reserved")

_SOURCE = "_get_prompt_logprobs_dict, vllm/v1/worker/gpu_model_runner.py"
_SOURCE_V2 = "PromptLogprobsWorker, vllm/v1/worker/gpu/sample/prompt_logprob.py"


def prompt_logprobs(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """Who writes `max_logprobs` means to serve them. No value forbids `prompt_logprobs`: 0 lets a
    request ask for 0, which takes the same logits (`_get_prompt_logprobs_dict`,
    vllm/v1/worker/gpu_model_runner.py; `_validate_logprobs`, vllm/sampling_params.py of 0.32).
    """
    most = engine_args.get("max_logprobs")
    if most is None:
        return None
    batch = min(known.budget.max_num_batched_tokens, known.budget.max_model_len)
    tokens = min(batch, V2_LOGPROBS_TOKENS) if known.runner == "V2" else batch
    nbytes = tokens * known.vocab_size * LOGIT_BYTES or None
    detail = (
        f"max_logprobs {most}: a request with prompt_logprobs takes logits of all {tokens:,} "
        f"tokens of a chunk, {known.vocab_size:,} each{size(nbytes)}, which no profile runs "
        f"({_SOURCE_V2 if known.runner == 'V2' else _SOURCE})"
    )
    name, reserved = LOGPROBS_RESERVED, known.activation_peak_bytes
    taken = None if nbytes is None else Taken("logits of prompt_logprobs", nbytes)
    if nbytes is not None and reserved is not None and nbytes <= reserved:
        held = f"{detail}; the activation peak reserves {gib(reserved)} (rehearsed)"
        return Trap(Check(name, "pass", held), taken)
    lower = max(1, tokens // 4)
    remedy = (
        f"{line('max_num_batched_tokens', lower)} takes a quarter of it, where no item is larger; "
        "or a proxy that refuses prompt_logprobs: no option of vLLM does"
    )
    return Trap(Check(name, "warn", detail, remedy), taken)


TRAPS = (TrapRule(40, prompt_logprobs),)
