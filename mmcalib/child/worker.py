"""Runs inside vLLM's worker, as its `worker_extension_cls`: reads memory where it is allocated."""

from __future__ import annotations

from typing import Any

import torch

from mmcalib.child.cuda import peak_above, phase_peaks, stay_on_card
from mmcalib.child.peak import traced
from mmcalib.domain.memory import WorkerMemory
from mmcalib.releases.budget import worker_budget
from mmcalib.releases.environment import subtracts_graphs
from mmcalib.releases.kv_cache import bytes_per_token
from mmcalib.releases.runner import encoded, encoder_batches
from mmcalib.releases.worker_attributes import with_phases, worker_memory

# vLLM imports this module in each worker, before it looks at the GPU.
stay_on_card()


class WorkerMethods:
    """Methods that `collective_rpc` calls; `self` is vLLM's worker."""

    model_runner: Any

    def mmcalib_kv(self) -> tuple[float, int]:
        """KV cache: (bytes per token over all layers of this worker, number of layers)."""
        specs = self.model_runner.get_kv_cache_spec().values()
        return bytes_per_token(specs), len(specs)

    def mmcalib_budget(self) -> dict[str, Any]:
        """The encoder budget that this worker really has."""
        budget = worker_budget(self)
        if budget is None or not budget.mm_max_toks_per_item:
            return {"tokens": 0, "modality": None, "items": 0, "max_tokens": 0}
        modality = budget.get_modality_with_max_tokens()
        return {
            "tokens": budget.get_encoder_budget(),
            "modality": modality,
            "items": budget.mm_max_items_per_batch[modality],
            "max_tokens": budget.mm_max_toks_per_item[modality],
        }

    def mmcalib_memory(self) -> WorkerMemory:
        """What the CUDA worker measured and decided, and the peaks of a second profile."""
        found = worker_memory(self, subtracts_graphs=subtracts_graphs())
        return with_phases(found, phase_peaks(self.model_runner))

    def mmcalib_peak(self, start_bytes: int | None) -> int:
        """Bytes held on the GPU now (None), or at most since then above so many."""
        return peak_above(start_bytes)

    def mmcalib_encode(self, modality: str, media: Any) -> tuple[int, float, int]:
        """Encode one item: (embeds, seconds as in `traced`, peak bytes above the start)."""
        runner = self.model_runner
        batches, embeds = encoder_batches(self, modality, media, 1)
        model = runner.get_model()

        def run() -> list[Any]:
            return encoded(model, batches)

        with torch.inference_mode():
            _, seconds, peak = traced(run, runner.device)
        return embeds, seconds, peak

    def mmcalib_profile(self) -> tuple[float, int]:
        """Trace vLLM's own `profile_run`: (seconds, peak bytes above what was held before)."""
        with torch.inference_mode():
            _, seconds, peak = traced(self.model_runner.profile_run, self.model_runner.device)
        return seconds, peak
