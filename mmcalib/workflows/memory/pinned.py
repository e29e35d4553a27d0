"""`--pin-kv-cache`: the KV cache's size as it is written, once it was rehearsed so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmcalib.checks.check import Check
from mmcalib.checks.facts import Configuration
from mmcalib.checks.reserve import KV_PINNED
from mmcalib.derive.pools import FixedPool, fixed_pool
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.results.calibration import Evidence
from mmcalib.wording import gib
from mmcalib.workflows.memory.checks import predicted_shortfall
from mmcalib.workflows.memory.cured import Ask
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.memory.worst_steps import encoder_steps

_REMEDY = "a smaller --max-model-len, or no --pin-kv-cache"


@dataclass(frozen=True, slots=True)
class PinnedPool:
    """`pool` is None where vLLM would not start with it; else `rehearsed` is what it found."""

    pool: FixedPool | None
    check: Check
    rehearsed: Rehearsed | None = None


def pinned(predicted: Predicted, decision: Configuration, ask: Ask) -> PinnedPool | None:
    """The size that is written, rehearsed as it will be served: less by what serving takes beyond
    the profile. None where nothing was rehearsed or nothing is left, of which another check tells.
    """
    short = predicted_shortfall(predicted, decision)
    spared = short.nbytes if short is not None and not short.passes else 0
    pool = fixed_pool(predicted.calibrated, spared) if predicted.calibrated else None
    if pool is None:
        return None
    (found,) = ask([pool.on(decision.engine_args)], encoder_steps(decision))
    if found is None or found.kv_cache_tokens is None:
        why = found.problem if found else "it could not be rehearsed"
        detail = f"{gib(pool.kv_cache_memory_bytes)} are too little, rehearsed: {why}"
        return PinnedPool(None, Check(KV_PINNED, "fail", detail, _REMEDY))
    return PinnedPool(pool, Check(KV_PINNED, "pass", _said(pool, found)), found)


def _said(pool: FixedPool, found: Rehearsed) -> str:
    graphs = f", graphs of {len(pool.capture_sizes)} sizes" if pool.capture_sizes else ""
    return (
        f"KV cache {gib(pool.kv_cache_memory_bytes)} of {gib(pool.left_bytes)} that are left, "
        f"{found.kv_cache_tokens:,} tokens{graphs}; vLLM takes them as they are, and heeds no "
        "gpu_memory_utilization"
    )


def _spared(pool: FixedPool) -> str:
    if not pool.spared_bytes:
        return ""
    return f" and {gib(pool.spared_bytes)} for steps that take more than is profiled"


def pinned_evidence(pool: FixedPool, gpu: str) -> Iterator[Evidence]:
    """One entry per emitted value."""
    yield Evidence(
        setting="kv_cache_memory_bytes",
        value=pool.kv_cache_memory_bytes,
        label="rehearsed",
        reason=f"--pin-kv-cache: what rehearsal leaves on {gpu}, less {VLLM_SLACK_BYTES >> 20} MiB "
        f"as vLLM suggests it{_spared(pool)}; with it vLLM ignores gpu_memory_utilization",
    )
    if pool.capture_sizes:
        yield Evidence(
            setting="cudagraph_capture_sizes",
            value=list(pool.capture_sizes),
            label="rehearsed",
            reason=f"--pin-kv-cache: vLLM's own on {gpu}, so that no start captures more",
        )
