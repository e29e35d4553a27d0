"""Storages of tensors, and the peak memory of a call; needs torch, not vLLM."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch


def storage_sizes(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the bytes of the tensors' distinct storages, by address."""
    parts = (tensor.untyped_storage() for tensor in tensors)
    return {storage._cdata: storage.nbytes() for storage in parts}


T = TypeVar("T")


def trace_memory(run: Callable[[], T], device: torch.device) -> tuple[T, float, int]:
    """Call `run`: (its result, seconds, peak bytes allocated on the device since the start).

    Seconds are processor time divided by threads on a CPU, and wall time on CUDA.
    """
    return _on_cuda(run, device) if device.type == "cuda" else _on_cpu(run)


def time_call(run: Callable[[], T], device: torch.device) -> tuple[T, float, int | None]:
    """Call `run`: (result, wall seconds until the device is done, peak bytes; None on a CPU)."""
    if device.type == "cuda":
        return _on_cuda(run, device)
    started = time.perf_counter()
    result = run()
    return result, time.perf_counter() - started, None


def _on_cpu(run: Callable[[], T]) -> tuple[T, float, int]:
    from torch.profiler import ProfilerActivity, profile

    started = time.process_time()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = run()
    seconds = (time.process_time() - started) / torch.get_num_threads()
    allocated = peak = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak = max(peak, allocated)
    return result, seconds, peak


def _on_cuda(run: Callable[[], T], device: torch.device) -> tuple[T, float, int]:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    started = time.perf_counter()
    result = run()
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    return result, seconds, torch.cuda.max_memory_allocated(device) - before
