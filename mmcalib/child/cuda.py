"""A GPU from inside vLLM's worker: the peaks of a profile, and a smaller card than there is."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch

from mmcalib.engine.environment import CARD
from mmcalib.releases.runner import watched_phases


def stay_on_card() -> None:
    """Where `CARD` is set, torch's allocations beyond such a card fail from now on.

    Taken by then (contexts, other processes) counts as taken on the card. What is later allocated
    outside torch is not bounded: kernels loaded at first use, NCCL. Call before anything is loaded.
    """
    if CARD not in os.environ:
        return
    free, total = torch.cuda.mem_get_info()
    whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    left = int(os.environ[CARD]) - (total - free)
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, left / whole)))


def phase_peaks(model_runner: Any) -> dict[str, int]:
    """vLLM's own `profile_run` once more: the bytes above its start that each phase peaks at. Empty
    where it fails, as for want of room.

    A release whose profile leaves the encoder out has no such phase.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    start = torch.cuda.memory_allocated()
    peaks: dict[str, int] = {}

    def watching(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            torch.cuda.reset_peak_memory_stats()
            result = method(*args, **kwargs)
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - start
            peaks[name] = max(peaks.get(name, 0), peak)
            return result

        return watched

    try:
        model = model_runner.get_model()
        with watched_phases(model_runner, model, watching), torch.inference_mode():
            model_runner.profile_run()
    except Exception:  # noqa: BLE001 - the engine has started, whatever a second profile does
        traceback.print_exc()
        peaks.clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return peaks


def peak_above(start_bytes: int | None) -> int:
    """Bytes held at the peak since it was last reset, above `start_bytes`; resets it where that is
    None and returns what is held.
    """
    torch.cuda.synchronize()
    if start_bytes is None:
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    return int(torch.cuda.max_memory_allocated()) - start_bytes
