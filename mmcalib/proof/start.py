"""Starts the real engine on this machine and checks its budget and profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmcalib.checks.catalogue import ENGINE_START, MEMORY_PROFILE
from mmcalib.checks.check import Check
from mmcalib.checks.facts import JudgedConfig
from mmcalib.configs.opening import is_serving_gpu, without_gpu_args
from mmcalib.domain.memory import WorkerMemory
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import EngineStarted, StartEngine
from mmcalib.models.cut import Depths, cut_checkpoint, read_config, read_depths
from mmcalib.models.gpus import Gpu
from mmcalib.progress import Progress
from mmcalib.text import gib

# Two blocks of each stack have every kind of tensor, and the same activation peak.
CUT_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Started:
    """The engine's figures, and the depths it ran with."""

    figures: EngineStarted
    depths: Depths
    true_depths: Depths


@dataclass(frozen=True, slots=True)
class Launch:
    """A configuration, its model as opened here, and limits; `gpu` is the one that will serve."""

    config: JudgedConfig
    opened: ModelInfo
    model_path: Path
    scratch: Path
    budget_s: float
    gpu: Gpu | None = None

    @property
    def engine_args(self) -> dict[str, Any]:
        """The arguments that this machine supports."""
        return without_gpu_args(self.config.engine_args, self.opened.device)

    @property
    def serves(self) -> bool:
        """True if this machine's GPU is the one that will serve."""
        return is_serving_gpu(self.opened.device, self.gpu)


def start(host: EngineHost, launch: Launch, progress: Progress) -> Started:
    """Start the engine with dummy weights; without a GPU cut and eager. Raises EngineError."""
    path, budget = launch.model_path, launch.config.budget
    # The serving machine's default batch: `vllm.LLM` and this machine have other defaults.
    args = {
        "max_num_batched_tokens": budget.max_num_batched_tokens,
        "max_num_seqs": budget.max_num_seqs,
        **launch.engine_args,
        "model": str(path),
        "load_format": "dummy",
    }
    ran = true = read_depths(read_config(path), launch.opened.text_layers)
    if launch.opened.device == "cpu":
        cut = cut_checkpoint(path, launch.scratch / "cut", CUT_LAYERS)
        ran = read_depths(read_config(cut))
        args |= {"model": str(cut), "dtype": "bfloat16", "enforce_eager": True}
        # Here it would be a share of this machine's memory; another setting sizes the KV cache.
        args.pop("gpu_memory_utilization", None)
    # With a rehearsed GPU, the peak of this CPU is not needed.
    within_s = None if launch.gpu is not None else launch.budget_s
    request = StartEngine(args, true, within_s)
    with progress.step("starting the engine"):
        figures = host.ask(request, "starting the engine")
    return Started(figures, ran, true)


def _profile(tokens: int, items: int, modality: str | None) -> str:
    return f"{tokens} tokens, {items} × {modality}"


def startup_checks(started: Started, launch: Launch) -> list[Check]:
    """Check the engine's encoder budget against the computed one, and report its profile."""
    figures, budget = started.figures, launch.config.budget
    computed = budget.encoder_budget_tokens, budget.profiled_items, budget.profiled_modality
    found = figures.budget_tokens, figures.profiled_items, figures.profiled_modality
    detail = f"started on {figures.device} in {figures.start_s:.0f} s; encoder budget "
    detail += _profile(*found)
    if found != computed:
        detail += f", computed {_profile(*computed)}"
    if left_out := launch.config.engine_args.keys() - launch.engine_args.keys():
        named = [name for name in launch.config.engine_args if name in left_out]
        detail += f"; not set here, without a GPU: {', '.join(named)}"
    checks = [Check(ENGINE_START, "pass" if found == computed else "fail", detail)]
    if figures.gpu is not None:
        checks.append(_gpu_check(figures.gpu))
    elif launch.gpu is not None and figures.activation_peak_bytes is None:
        pass  # The GPU's peak was rehearsed.
    elif figures.computed_in is not None:
        detail = f"this CPU has no bfloat16, so the engine ran in {figures.computed_in} and its "
        detail += "activations have another size"
        remedy = "--gpu NAME rehearses them without a GPU"
        checks.append(Check(MEMORY_PROFILE, "skip", detail, remedy))
    elif figures.activation_peak_bytes is None:
        estimate = figures.profile_estimate_s or 0.0
        detail = f"the profile takes about {estimate:.0f} s here, or more memory than is free"
        remedy = "a larger --startup-budget, or run on a GPU machine"
        checks.append(Check(MEMORY_PROFILE, "skip", detail, remedy))
    else:
        peak = gib(figures.activation_peak_bytes)
        checks.append(Check(MEMORY_PROFILE, "pass", f"activation peak {peak}, measured"))
    return checks


def _gpu_check(gpu: WorkerMemory) -> Check:
    name = MEMORY_PROFILE
    if gpu.activation_peak_bytes is None:
        return Check(name, "skip", "this release of vLLM does not report its profile")
    tokens = "" if gpu.kv_cache_tokens is None else f", {gpu.kv_cache_tokens:,} tokens"
    pool = f"; KV cache {gib(gpu.kv_cache_bytes)}{tokens}" if gpu.kv_cache_bytes else ""
    peak = f"activation peak {gib(gpu.activation_peak_bytes)}{pool}, measured"
    if gpu.phases and "encoder" not in gpu.phases:
        blind = f"model runner {gpu.runner} does not profile or reserve memory for the encoder"
        remedy = "VLLM_USE_V2_MODEL_RUNNER=0 in the environment of vllm serve"
        return Check(name, "warn", f"{peak}; {blind}", remedy)
    return Check(name, "pass", peak)
