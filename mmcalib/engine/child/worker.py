"""Runs inside vLLM's worker, as its `worker_extension_cls`: reads memory where it is allocated."""

from __future__ import annotations

import time
from typing import Any

import torch

from mmcalib.engine.child.cuda import peak_above, phase_peaks, stay_on_card
from mmcalib.engine.child.kept import with_phases, worker_memory
from mmcalib.engine.child.versions import encoder_budget, encoder_inputs
from mmcalib.engine.messages import WorkerMemory
from mmcalib.rehearsal.versions import subtracts_graphs

# vLLM imports this module in each worker, before it looks at the GPU.
stay_on_card()


class Figures:
    """Methods that `collective_rpc` calls; `self` is vLLM's worker."""

    model_runner: Any

    def mmcalib_kv(self) -> tuple[float, int]:
        """KV cache: (bytes per token over all layers of this worker, number of layers)."""
        specs = self.model_runner.get_kv_cache_spec().values()
        return sum(spec.page_size_bytes / spec.block_size for spec in specs), len(specs)

    def mmcalib_budget(self) -> dict[str, Any]:
        """The encoder budget that this worker really has."""
        budget = encoder_budget(self)
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
        """Encode one item: (embeds, seconds as in `_traced`, peak bytes above the start)."""
        batch, embeds = encoder_inputs(self.model_runner, modality, media)
        with torch.inference_mode():
            seconds, peak = _traced(lambda: self.model_runner.model.embed_multimodal(**batch))
        return embeds, seconds, peak

    def mmcalib_profile(self) -> tuple[float, int]:
        """Trace vLLM's own `profile_run`: (seconds, peak bytes above what was held before)."""
        with torch.inference_mode():
            return _traced(self.model_runner.profile_run)


def _traced(run: Any) -> tuple[float, int]:
    """Run under the allocator's event trace: (seconds, peak of bytes allocated since the start).

    Seconds are processor time over threads, which other programs on the machine do not inflate.
    """
    from torch.profiler import ProfilerActivity, profile

    started = time.process_time()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        run()
    seconds = (time.process_time() - started) / torch.get_num_threads()
    held = peak = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return seconds, peak
