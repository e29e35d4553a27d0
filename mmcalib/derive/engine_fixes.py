"""Every memory fix that vLLM's documentation and the usual guides name, for one configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmcalib.derive.facts import Facts
from mmcalib.derive.fixes import Fix
from mmcalib.derive.goal import Goal
from mmcalib.derive.media_fixes import LAST, media_fixes
from mmcalib.releases.constants import SMALL_GPU_BATCHED_TOKENS

GIB: Final = 1 << 30
HOST_ONLY: Final = "host memory only"

# Of a GPU that serves nothing else; driver and display want some hundred MiB.
_UTILIZATION = 0.95
_MODEL_LENS = (32_768, 16_384, 8_192, 4_096)
_SEQS = (64, 16)
# vLLM's own default there, and half of it.
_BATCHED_TOKENS = (SMALL_GPU_BATCHED_TOKENS, SMALL_GPU_BATCHED_TOKENS // 2)
_GRAPH_SIZE = 16
_OFFLOADED = (4, 2)
_RANKS = (2, 4, 8)


def engine_fixes(engine_args: Mapping[str, Any], facts: Facts, goal: Goal) -> list[Fix]:
    """Fixes that would change these engine arguments, the mildest level of each knob first."""
    return [
        *_utilization(engine_args, facts),
        *_context(facts),
        *media_fixes(engine_args, facts),
        *_graphs(engine_args),
        *_batches(facts, goal),
        *_kv_cache_dtype(engine_args),
        *_quantization(engine_args, facts),
        *_offload(engine_args, facts),
        *_ranks(facts),
        *_host(),
    ]


def _utilization(args: Mapping[str, Any], facts: Facts) -> Iterator[Fix]:
    if args.get("gpu_memory_utilization", 0) >= _UTILIZATION:
        return
    rest = (1 - _UTILIZATION) * facts.total_bytes / GIB
    yield Fix(
        name="gpu_memory_utilization",
        knob="gpu_memory_utilization",
        changes={"gpu_memory_utilization": _UTILIZATION},
        cost="nothing",
        price=f"if nothing else runs on the GPU: {rest:.2f} GiB stay free",
    )


def _context(facts: Facts) -> Iterator[Fix]:
    shorter = [tokens for tokens in _MODEL_LENS if tokens < facts.max_model_len]
    for level, tokens in enumerate(shorter):
        yield Fix(
            name=f"max_model_len={tokens}",
            knob="max_model_len",
            changes={"max_model_len": tokens},
            cost="requests",
            price=f"prompt and answer have at most {tokens:,} tokens together",
            level=level,
            severity=level,
            alone=level == 0,
        )


def _graphs(args: Mapping[str, Any]) -> Iterator[Fix]:
    if args.get("enforce_eager"):
        return
    if "cudagraph_capture_sizes" not in args and "compilation_config" not in args:
        yield Fix(
            name="max_cudagraph_capture_size",
            knob="cuda graphs",
            changes={"max_cudagraph_capture_size": _GRAPH_SIZE},
            cost="speed",
            price=f"steps of more than {_GRAPH_SIZE} tokens run without CUDA graphs",
        )
    yield Fix(
        name="enforce_eager",
        knob="cuda graphs",
        changes={"enforce_eager": True},
        cost="speed",
        price="no CUDA graphs and no compiled code: slower answers, quicker start",
        level=1,
        severity=1,
    )


def _batches(facts: Facts, goal: Goal) -> Iterator[Fix]:
    least = goal.at_least if goal.kind == "concurrency" else 1
    seqs = [count for count in _SEQS if least <= count < facts.max_num_seqs]
    for level, count in enumerate(seqs):
        yield Fix(
            name=f"max_num_seqs={count}",
            knob="max_num_seqs",
            changes={"max_num_seqs": count},
            cost="speed",
            price=f"at most {count} requests run at once",
            level=level,
            severity=level,
            alone=level == 0,
        )
    largest = max(facts.largest_items.values(), default=0)
    for tokens in _BATCHED_TOKENS:
        needed = max(tokens, facts.max_num_seqs, 0 if facts.chunks_mm_input else largest)
        if needed < facts.max_num_batched_tokens:
            yield Fix(
                name="max_num_batched_tokens",
                knob="max_num_batched_tokens",
                changes={"max_num_batched_tokens": needed},
                cost="speed",
                price=f"prompts are read {needed:,} tokens at a time: slower first answers",
            )
            return


def _kv_cache_dtype(args: Mapping[str, Any]) -> Iterator[Fix]:
    if str(args.get("kv_cache_dtype", "auto")) not in ("auto", "bfloat16", "float16"):
        return
    yield Fix(
        name="kv_cache_dtype",
        knob="kv_cache_dtype",
        changes={"kv_cache_dtype": "fp8"},
        cost="quality",
        price="keys and values are kept in 8 bits",
    )


def _quantization(args: Mapping[str, Any], facts: Facts) -> Iterator[Fix]:
    if facts.quantized or args.get("quantization"):
        return
    yield Fix(
        name="quantization",
        knob="quantization",
        changes={"quantization": "fp8"},
        cost="quality",
        price="weights in 8 bits, made at each start: measure the answers, or take a checkpoint "
        "that was quantized with care",
        severity=LAST,
    )


def _offload(args: Mapping[str, Any], facts: Facts) -> Iterator[Fix]:
    before = float(args.get("cpu_offload_gb") or 0)
    sizes = sorted({math.ceil(facts.weights_bytes / share / GIB) for share in _OFFLOADED})
    for level, gib in enumerate(size for size in sizes if size > before):
        yield Fix(
            name=f"cpu_offload_gb={gib}",
            knob="cpu_offload_gb",
            changes={"cpu_offload_gb": gib},
            cost="most of the speed",
            price=f"every step reads {gib} GiB of weights from host memory",
            level=level,
            severity=level,
            alone=level == 0,
        )


def _ranks(facts: Facts) -> Iterator[Fix]:
    # vLLM refuses ranks that cannot share the heads.
    heads = facts.attention_heads or max(_RANKS)
    more = [n for n in _RANKS if n > facts.tensor_parallel_size and heads % n == 0]
    for level, ranks in enumerate(more):
        yield Fix(
            name=f"tensor_parallel_size={ranks}",
            knob="tensor_parallel_size",
            changes={"tensor_parallel_size": ranks},
            cost="hardware",
            price=f"{ranks} such GPUs",
            level=level,
            severity=level,
            alone=level == 0,
        )


def _host() -> Iterator[Fix]:
    yield Fix(
        name="mm_processor_cache_gb",
        knob="mm_processor_cache_gb",
        changes={"mm_processor_cache_gb": 0},
        cost="speed",
        price="processed media are not kept: 4 GiB less for each process that has a cache",
        combines=False,
        untried=HOST_ONLY,
    )
    yield Fix(
        name="VLLM_CPU_KVCACHE_SPACE",
        knob="VLLM_CPU_KVCACHE_SPACE",
        changes={},
        cost="speed",
        price="the KV cache of vLLM's CPU backend: no GPU has it",
        combines=False,
        untried=HOST_ONLY,
    )
