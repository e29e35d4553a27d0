"""Traps of options that trust clients: requests that bring their own caps, or embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.trap import Figures, Taken, Trap, TrapRule, size

CAPS_HOLD = CheckId("caps hold for every request")
EMBEDDINGS = CheckId("embeddings of clients")


def trusted_kwargs(served: Mapping[str, Any], known: Figures) -> Trap | None:
    """`served` are all arguments of `vllm serve`. By default a request with `mm_processor_kwargs`
    or `media_io_kwargs` ends with HTTP 400 (`validate_request_mm_kwargs`,
    vllm/entrypoints/generate/base/protocol.py of 0.32).
    """
    if not served.get("trust_request_mm_kwargs"):
        return None
    limit = known.budget.encoder_budget_tokens
    detail = (
        "trust_request_mm_kwargs: a request may bring mm_processor_kwargs and media_io_kwargs of "
        "its own (validate_request_mm_kwargs, vllm/entrypoints/generate/base/protocol.py), so no "
        f"cap of this file holds: an item may take up to the encoder cache, {limit:,} tokens, and "
        "host memory for pixels and frames without bound; what was derived or checked for this "
        "file is void"
    )
    remedy = "remove trust-request-mm-kwargs unless you trust every client"
    return Trap(Check(CAPS_HOLD, "warn", detail, remedy))


def embeddings(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """Items that clients have encoded fill the encoder cache; of a modality limited to 0 their
    number is not checked and nothing is profiled (`MultiModalBudget`,
    vllm/multimodal/encoder_budget.py, `profile_run`, vllm/v1/worker/gpu_model_runner.py of 0.32).
    """
    if not engine_args.get("enable_mm_embeds"):
        return None
    limit, unlimited = (
        known.budget.encoder_cache_size,
        [m for m, n in known.counts.items() if not n],
    )
    held = f"up to {limit:,} tokens in the encoder cache{size(known.encoder_cache_bytes)}"
    detail = f"enable_mm_embeds: clients may send embeddings, {held}; wrong shapes may end vLLM"
    if unlimited:
        detail += (
            f"; of {', '.join(unlimited)}, limited to 0, any number of them "
            "(MultiModalBudget, vllm/multimodal/encoder_budget.py)"
        )
    taken = None
    if not any(known.counts.values()):
        detail += "; nothing of that is profiled (profile_run, vllm/v1/worker/gpu_model_runner.py)"
        if known.encoder_cache_bytes is not None:
            taken = Taken("embeddings that clients send", known.encoder_cache_bytes)
    remedy = "remove enable-mm-embeds unless you trust every client"
    return Trap(Check(EMBEDDINGS, "warn", detail, remedy), taken)


TRAPS = (
    TrapRule(10, trusted_kwargs, of_server=True),
    TrapRule(60, embeddings),
)
