"""From the figures of an engine start and a replay to what the reports show of them."""

from __future__ import annotations

from mmcalib.domain.label import Label
from mmcalib.domain.worker_memory import WorkerMemory
from mmcalib.engine.messages import Replayed
from mmcalib.results.memory import Memory, ReplayResult, Startup
from mmcalib.workflows.proof.burst import Burst
from mmcalib.workflows.proof.replay import mismatched, rejected
from mmcalib.workflows.proof.startup import Started


def measured_memory(started: Started | None, *, own: bool) -> Memory:
    """`own`: whether the figures are of this very configuration, or only its weights are."""
    if started is None:
        return Memory(note="no engine was started")
    figures = started.figures
    cut = started.depths != started.true_depths
    scaled: Label = "computed" if cut else "measured"
    notes = ["weights and KV bytes scaled from the cut depth"] if cut else []
    if figures.computed_in is not None:
        notes.append(f"and from {figures.computed_in}, in which this CPU computed")
    labels: dict[str, Label] = {"weights_bytes": scaled, "kv_bytes_per_token": scaled}
    peak = figures.activation_peak_bytes if own else None
    if peak is not None:
        labels["activation_peak_bytes"] = "measured"
        notes.append(f"activation peak of {figures.device} kernels")
    found = Memory(
        weights_bytes=figures.weights_full_bytes,
        kv_bytes_per_token=figures.kv_full_bytes_per_token,
        activation_peak_bytes=peak,
        label="measured" if peak is not None else scaled,
        labels=labels,
        note="; ".join(notes),
    )
    return found.model_copy(update=_of_gpu(figures.gpu)) if own and figures.gpu else found


def _of_gpu(gpu: WorkerMemory) -> dict[str, int | float | None]:
    """The fields of `Memory` that only a start on a GPU has."""
    outside = gpu.non_torch_bytes or 0
    return {
        "total_bytes": gpu.total_bytes,
        "requested_bytes": gpu.requested_bytes,
        "buffers_bytes": None if gpu.beside_bytes is None else gpu.beside_bytes - outside,
        "encoder_peak_bytes": gpu.phases.get("encoder"),
        "language_model_peak_bytes": gpu.phases.get("language model"),
        "sampler_peak_bytes": gpu.phases.get("sampler"),
        "non_torch_bytes": gpu.non_torch_bytes,
        "cudagraph_bytes": gpu.cudagraph_bytes,
        "kv_cache_bytes": gpu.kv_cache_bytes,
        "kv_cache_tokens": gpu.kv_cache_tokens,
        "max_concurrency": None if gpu.max_concurrency is None else round(gpu.max_concurrency, 2),
    }


def _beyond_memory(gpu: WorkerMemory, replayed: Replayed | None) -> dict[str, int | None]:
    return {
        "free_before_bytes": gpu.free_before_bytes,
        "cudagraph_captured_bytes": gpu.cudagraph_captured_bytes,
        "replay_peak_bytes": replayed.peak_bytes if replayed else None,
    }


def startup_figures(
    started: Started | None, burst: Burst | None, replayed: Replayed | None
) -> Startup | None:
    """How the engine started, and what became of the prompts."""
    if started is None:
        return None
    figures = started.figures
    return Startup(
        device=figures.device,
        depth=started.depths,
        true_depth=started.true_depths,
        seconds=round(figures.start_s, 2),
        figures={
            "weights_bytes": figures.weights_bytes,
            "kv_bytes_per_token": figures.kv_bytes_per_token,
            "activation_peak_bytes": figures.activation_peak_bytes,
            "profile_s": figures.profile_s,
            "profile_estimate_s": figures.profile_estimate_s,
            "encoder_budget_tokens": figures.budget_tokens,
            "profiled_items": figures.profiled_items,
            "encoder_seconds_per_token": figures.encoder_seconds_per_token,
            **(_beyond_memory(figures.gpu, replayed) if figures.gpu else {}),
        },
        replay=_replay(burst, replayed),
    )


def _replay(burst: Burst | None, replayed: Replayed | None) -> ReplayResult | None:
    if burst is None or replayed is None:
        return None
    refused = rejected(replayed)
    return ReplayResult(
        prompts=len(burst.prompts),
        admitted=len(burst.prompts) + len(burst.admit),
        rejected=len(refused),
        oom=sum(one.out_of_memory for one in (*replayed.answers, *replayed.admitted)),
        token_mismatches=len(mismatched(burst, replayed)),
        encoder_tokens=burst.encoder_tokens,
        largest_encoder_step_tokens=replayed.largest_encoder_step_tokens,
        left_out=burst.too_heavy,
        seconds=round(replayed.seconds, 2),
    )
