"""What vLLM's CUDA worker keeps of its start: releases differ in it. Imports nothing of vLLM."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from mmcalib.domain.memory import WorkerMemory
from mmcalib.text import GIB

# cuBLAS takes 32 MiB on Hopper, cublasLt as much; more was taken by something else.
_LEFT_BY_PROFILE_BYTES: Final = 128 << 20


def worker_memory(worker: Any, *, subtracts_graphs: bool) -> WorkerMemory:
    """What vLLM's CUDA worker keeps of its start. `subtracts_graphs`: whether its estimate of CUDA
    graphs was taken off the KV cache.

    Attributes of 0.26 and of 0.32, which differ: 0.32 keeps all that was consumed, weights
    included, as `total_consumed`, and the graphs within `peak_activation_memory`.
    """

    def kept(name: str) -> int | None:
        value = getattr(worker, name, None)
        return None if value is None else int(value)

    first, cache = getattr(worker, "init_snapshot", None), worker.vllm_config.cache_config
    weights = int(worker.model_runner.model_memory_usage)
    graphs, peak = kept("cudagraph_memory_estimate"), kept("peak_activation_memory")
    if graphs is not None and not subtracts_graphs:
        graphs = 0
    consumed, outside = kept("total_consumed"), kept("non_torch_memory")
    beside = outside
    if consumed is not None:
        beside = consumed - weights
        peak = None if peak is None else peak - (graphs or 0)
    blocks, block_size = cache.num_gpu_blocks, cache.block_size
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    if tokens is None and blocks and block_size:
        tokens = blocks * block_size
    return WorkerMemory(
        runner="V2" if getattr(worker, "use_v2_model_runner", False) else "V1",
        total_bytes=None if first is None else int(first.total_memory),
        free_before_bytes=None if first is None else int(first.free_memory),
        requested_bytes=kept("requested_memory"),
        weights_bytes=weights,
        activation_peak_bytes=peak,
        beside_bytes=beside,
        non_torch_bytes=outside,
        cudagraph_bytes=graphs,
        # A size that the user gave is never measured.
        kv_cache_bytes=cache.kv_cache_memory_bytes or kept("available_kv_cache_memory_bytes"),
        kv_cache_tokens=None if tokens is None else int(tokens),
        max_concurrency=getattr(cache, "kv_cache_max_concurrency", None),
    )


def with_phases(found: WorkerMemory, peaks: dict[str, int]) -> WorkerMemory:
    """With the peaks of a second profile. It finds what the first left in torch (workspaces of
    matrix products) already there; where vLLM's own peak has it, all are raised by it.
    """
    own, highest = found.activation_peak_bytes or 0, max(peaks.values(), default=0)
    left = own - highest if own - highest <= _LEFT_BY_PROFILE_BYTES else 0
    raised = {name: peak + max(0, left) for name, peak in peaks.items()}
    return replace(found, phases=raised)


_GRAPHS_TOOK = re.compile(r"Graph capturing finished in \S+ secs, took (\S+) GiB")


class _Captured(logging.Handler):
    """Notes the GiB that vLLM says its CUDA graphs took; no attribute keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = _GRAPHS_TOOK.search(record.getMessage())
        if found:
            self.nbytes = round(float(found[1]) * GIB)


@contextmanager
def graphs_as_captured() -> Iterator[_Captured]:
    """While open, CUDA graphs that are captured in this process leave their size in the handler."""
    handler, logger = _Captured(), logging.getLogger("vllm")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
