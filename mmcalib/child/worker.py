"""Methods that mmcalib adds to vLLM's workers, to read their memory from inside."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch

from mmcalib.child.tensors import trace_memory
from mmcalib.domain.memory import Budget, WorkerMemory
from mmcalib.engine.environment import CARD_VARIABLE
from mmcalib.releases import runner


def limit_to_card() -> None:
    """If `CARD_VARIABLE` is set, limit torch to such a card, less the memory in use now."""
    if CARD_VARIABLE not in os.environ:
        return
    free, total = torch.cuda.mem_get_info()
    whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    allowed = int(os.environ[CARD_VARIABLE]) - (total - free)
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, allowed / whole)))


def phase_peaks(model_runner: Any) -> dict[str, int]:
    """Run `profile_run` again: each phase's peak bytes above its start; empty if it fails."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    start = torch.cuda.memory_allocated()
    peaks: dict[str, int] = {}

    def wrap(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def record_peak(*args: Any, **kwargs: Any) -> Any:
            torch.cuda.reset_peak_memory_stats()
            result = method(*args, **kwargs)
            torch.cuda.synchronize()
            peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_allocated() - start)
            return result

        return record_peak

    try:
        model = model_runner.get_model()
        with runner.wrap_phases(model_runner, model, wrap), torch.inference_mode():
            model_runner.profile_run()
    except Exception:  # noqa: BLE001 - the engine works even if a second profile fails
        traceback.print_exc()
        peaks.clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return peaks


# vLLM imports this module in each worker before it reads the GPU's memory.
limit_to_card()


class WorkerMethods:
    """Methods that `collective_rpc` calls; `self` is vLLM's worker."""

    model_runner: Any
    vllm_config: Any

    def mmcalib_kv(self) -> float:
        """Return KV cache bytes per token over all layers of this worker."""
        return runner.bytes_per_token(self.model_runner.get_kv_cache_spec().values())

    def mmcalib_budget(self) -> Budget | None:
        """Return vLLM's encoder budget; None for a text-only model."""
        budget = runner.worker_budget(self)
        return budget and runner.to_budget(self.vllm_config, budget, lambda *_: None)

    def mmcalib_memory(self) -> WorkerMemory:
        memory = runner.read_worker_memory(self, subtracts_graphs=runner.subtracts_graphs(self))
        return runner.add_phase_peaks(memory, phase_peaks(self.model_runner))

    def mmcalib_peak(self, start_bytes: int | None) -> int:
        """Reset the peak and return the bytes in use (None), or the peak above `start_bytes`."""
        torch.cuda.synchronize()
        if start_bytes is None:
            torch.cuda.reset_peak_memory_stats()
            return int(torch.cuda.memory_allocated())
        return int(torch.cuda.max_memory_allocated()) - start_bytes

    def mmcalib_encode(self, modality: str, media: Any) -> tuple[int, float, int]:
        """Encode one item: (embeds, seconds as in `trace_memory`, peak bytes above the start)."""
        batches, embeds = runner.encoder_batches(self, modality, media, 1)
        model, device = self.model_runner.get_model(), self.model_runner.device
        with torch.inference_mode():
            _, seconds, peak = trace_memory(lambda: runner.run_encoder(model, batches), device)
        return embeds, seconds, peak

    def mmcalib_profile(self) -> tuple[float, int]:
        """Trace vLLM's own `profile_run`: (seconds, peak bytes above the start)."""
        with torch.inference_mode():
            _, seconds, peak = trace_memory(self.model_runner.profile_run, self.model_runner.device)
        return seconds, peak
