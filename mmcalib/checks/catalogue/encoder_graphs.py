"""Trap of `cudagraph_mm_encoder`: graphs of the encoder have a memory pool of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.trap import Figures, Taken, Trap, TrapRule, size
from mmcalib.releases.constants import ENCODER_GRAPH_LEAST_TOKENS

GRAPHS_RESERVED = CheckId("encoder graphs reserved")


def encoder_graphs(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """A graph is captured for each token budget, in one pool beside what eager code takes
    (`EncoderCudaGraphManager`, vllm/v1/worker/encoder_cudagraph.py of 0.32), and what is larger
    than all of them runs eagerly. The largest graph holds as much as a profile of as many tokens.
    """
    compilation = engine_args.get("compilation_config")
    if not isinstance(compilation, Mapping) or not compilation.get("cudagraph_mm_encoder"):
        return None
    name = GRAPHS_RESERVED
    if engine_args.get("enforce_eager"):
        detail = "enforce_eager: no graph is captured, cudagraph_mm_encoder changes nothing"
        return Trap(Check(name, "warn", detail, "remove one of the two"))
    sizes = _budgets(compilation, known)
    largest, most = sizes[-1], known.budget.encoder_budget_tokens
    pool = None
    if known.encoder_peak_bytes is not None and known.encoder_tokens:
        pool = round(known.encoder_peak_bytes * largest / known.encoder_tokens)
    eager = ""
    if largest < most:
        eager = (
            f"; a step of more than {largest:,} tokens, {most:,} at most, runs without them and "
            "takes what the profile has beside that"
        )
    detail = (
        f"cudagraph_mm_encoder: {len(sizes)} graphs or more, the largest of {largest:,} tokens, "
        f"keep a pool of their own{size(pool)} that a rehearsal does not see; vLLM takes it from "
        "the KV cache (profile_cudagraph_memory, vllm/v1/worker/gpu_model_runner.py) unless "
        f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0{eager}"
    )
    remedy = "compilation-config: {encoder_cudagraph_token_budgets: [...]} of what you serve"
    taken = None if pool is None else Taken("CUDA graphs of the encoder", pool)
    return Trap(Check(name, "warn", detail, remedy), taken)


def _budgets(compilation: Mapping[str, Any], known: Figures) -> list[int]:
    """As given, or powers of two up to a whole batch (`_generate_budgets`)."""
    given = compilation.get("encoder_cudagraph_token_budgets")
    if given:
        return sorted(int(tokens) for tokens in given)
    most = min(known.budget.max_num_batched_tokens, known.budget.max_model_len)
    found, tokens = [], ENCODER_GRAPH_LEAST_TOKENS
    while tokens < most:
        found.append(tokens)
        tokens *= 2
    return [*found, most]


TRAPS = (TrapRule(50, encoder_graphs),)
