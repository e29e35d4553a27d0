"""What startup takes off for CUDA graphs: an allowance, and what attention keeps, which is not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.child.rehearsal.device.ledger import Ledger
from mmcalib.child.rehearsal.startup import Brought
from mmcalib.releases import backends, captures, kv_cache
from mmcalib.releases.compilation import graph_mode
from mmcalib.releases.runner import run_prefill, uses_v2_runner
from mmcalib.text import MIB

# A least-squares line through six public estimates for dense decoders since 0.19, 13 to 86 graphs
# (benchmarks/memory_allowances.toml has them): the pool with a first graph, and each graph.
PER_GRAPH_BYTES: Final = 6.2 * MIB
FIRST_GRAPH_BYTES: Final = 52 * MIB
# Its workspace is allocated by the first step that attends, not by the profile, and that line is of
# models which have none.
_FLASHINFER: Final = "FLASHINFER"
# A prompt for whatever drafts there are: no longer step allocates more.
PROMPT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Graphs:
    """`count` graphs would be captured; `nbytes` is what startup subtracts for them.

    `attention_bytes` of these are computed: by how much they are more for what attention keeps.
    `beside_bytes` is what attention keeps and no estimate has. `problem` is why that is not known.
    """

    count: int
    nbytes: int
    attention_bytes: int = 0
    beside_bytes: int = 0
    problem: str = ""


def estimate(config: Any, max_num_reqs: int, subtracted: bool) -> Graphs:
    """By the configuration's capture sizes and modes; zero where graphs are off.

    `config` is the engine config as the user has it, not the eager one that is rehearsed. Where
    startup does not subtract them they are counted, and cost nothing.
    """
    mode = graph_mode(config)
    if mode == "NONE":
        return Graphs(0, 0)
    sizes = config.compilation_config.cudagraph_capture_sizes or []
    count = 0
    if "PIECEWISE" in mode:
        count += len(sizes)
    if "FULL" in mode:
        count += sum(size <= max_num_reqs for size in sizes)
    if not count or not subtracted:
        return Graphs(count, 0)
    return Graphs(count, round(FIRST_GRAPH_BYTES + count * PER_GRAPH_BYTES))


def with_attention(
    graphs: Graphs, config: Any, brought: Brought, ledger: Ledger, mode: str
) -> Graphs:
    """With what FlashInfer keeps of the steps that the estimate captures, and of its first prompt
    and answer beside; `mode` is the user's.

    The estimate is free memory before and after each of its captures. The first runner counts a
    mode's second graph for all the others, and of both modes' first the larger; the second measures
    all captures in one (`profile_cudagraph_memory` in vllm/v1/worker/gpu_model_runner.py and
    gpu/cudagraph_utils.py of 0.32). Leaves the GPU as it was.
    """
    worker = brought.worker
    if not graphs.nbytes or _FLASHINFER not in backends.attention(worker.vllm_config).split(", "):
        return graphs
    kv_cache.resolve_layout(config, worker, list(worker.get_kv_cache_spec().values()))
    taken: list[int] = []
    try:
        with captures.estimated(worker, mode) as sampled:
            beside = ledger.booked_bytes(sampled.before)
            for step in sampled.steps:
                with ledger.phase("capture") as phase:
                    step()
                taken.append(phase.end_bytes - phase.start_bytes)
            for tokens in (PROMPT_TOKENS, 1):
                with ledger.phase("serving") as phase:
                    run_prefill(worker, tokens, 1)
                beside += phase.end_bytes - phase.start_bytes
    except Exception as error:  # noqa: BLE001 - without it the allowance stands alone
        return dataclasses.replace(
            graphs, problem=" ".join(str(error).split()) or type(error).__name__
        )
    more = sum(taken)
    if taken and not uses_v2_runner(worker):
        first, second = taken[0], taken[1] if len(taken) > 1 else 0
        if sampled.overlaid:
            first = max(0, first - round(FIRST_GRAPH_BYTES))
        more = first + second * (sampled.full - 1)
    return dataclasses.replace(
        graphs,
        nbytes=graphs.nbytes + more,
        attention_bytes=more,
        beside_bytes=beside,
    )
