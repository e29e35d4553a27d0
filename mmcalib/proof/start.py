"""The engine for real: with this configuration, here, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmcalib.checks.catalogue import ENGINE_START, MEMORY_PROFILE
from mmcalib.checks.check import Check
from mmcalib.checks.facts import JudgedConfig
from mmcalib.domain.memory import WorkerMemory
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import EngineStarted, StartEngine
from mmcalib.engine.vllm_config import here, serves
from mmcalib.models.cut import cut_checkpoint, depths, read_config
from mmcalib.models.gpus import Gpu
from mmcalib.progress import Progress
from mmcalib.text import gib

# Two blocks of each stack show every kind of tensor; activations' peak does not need more.
CUT_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Started:
    """The engine's figures, and the depths (text, encoder) that it ran with."""

    figures: EngineStarted
    depths: tuple[int, int]
    true_depths: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """A configuration, its model as opened here, and where and how long it may be tried: files in
    `scratch`, seconds for the profile. `gpu` is the one that will serve, on which it is rehearsed.
    """

    config: JudgedConfig
    opened: ModelInfo
    model_path: Path
    scratch: Path
    budget_s: float
    gpu: Gpu | None = None

    @property
    def engine_args(self) -> dict[str, Any]:
        """Those that can be had on this machine."""
        return here(self.config.engine_args, self.opened.device)

    @property
    def serves(self) -> bool:
        """Whether this machine's GPU is the one that will serve."""
        return serves(self.opened.device, self.gpu)


def start(host: EngineHost, launch: Launch, progress: Progress) -> Started:
    """Start the real engine with dummy weights; raises EngineError where it does not start.

    Without a GPU the depth is cut and kernels run eagerly.
    """
    path, budget = launch.model_path, launch.config.budget
    # The serving machine's batch by default: `vllm.LLM` and this machine have other ones.
    args = {
        "max_num_batched_tokens": budget.max_num_batched_tokens,
        "max_num_seqs": budget.max_num_seqs,
        **launch.engine_args,
        "model": str(path),
        "load_format": "dummy",
    }
    ran = true = depths(read_config(path))
    if launch.opened.device == "cpu":
        cut = cut_checkpoint(
            path, launch.scratch / "cut", text_layers=CUT_LAYERS, encoder_layers=CUT_LAYERS
        )
        ran = cut.depths
        args |= {"model": str(cut.path), "dtype": "bfloat16", "enforce_eager": True}
        # It would be a share of this machine's memory, whose KV cache another setting sizes.
        args.pop("gpu_memory_utilization", None)
    # The peak of another GPU is known, so that a CPU's need not be traced.
    within_s = None if launch.gpu is not None else launch.budget_s
    request = StartEngine(args, (true.text_layers, true.encoder_layers), within_s)
    with progress.step("starting the engine"):
        figures = host.ask(request, "starting the engine")
    return Started(
        figures, (ran.text_layers, ran.encoder_layers), (true.text_layers, true.encoder_layers)
    )


def _profile(tokens: int, items: int, modality: str | None) -> str:
    return f"{tokens} tokens, {items} × {modality}"


def startup_checks(started: Started, launch: Launch) -> list[Check]:
    """Whether the engine came up with the budget that was computed, and what its profile took."""
    figures, budget = started.figures, launch.config.budget
    computed = budget.encoder_budget_tokens, budget.profiled_items, budget.profiled_modality
    found = figures.budget_tokens, figures.profiled_items, figures.profiled_modality
    detail = f"started on {figures.device} in {figures.start_s:.0f} s; encoder budget "
    detail += _profile(*found)
    if found != computed:
        detail += f", computed {_profile(*computed)}"
    if left_out := launch.config.engine_args.keys() - launch.engine_args.keys():
        named = [name for name in launch.config.engine_args if name in left_out]
        detail += f"; left out here, without a GPU: {', '.join(named)}"
    checks = [Check(ENGINE_START, "pass" if found == computed else "fail", detail)]
    if figures.gpu is not None:
        checks.append(_gpu_check(figures.gpu))
    elif launch.gpu is not None and figures.activation_peak_bytes is None:
        pass  # The GPU's peak was rehearsed, and this CPU's decides nothing.
    elif figures.computed_in is not None:
        detail = "this CPU has no bfloat16 of its own: the engine computed in "
        detail += f"{figures.computed_in}, and its activations took other bytes"
        remedy = "--gpu NAME rehearses them, without a GPU"
        checks.append(Check(MEMORY_PROFILE, "skip", detail, remedy))
    elif figures.activation_peak_bytes is None:
        estimate = figures.profile_estimate_s or 0.0
        detail = f"encoding the profile's items would take about {estimate:.0f} s here, or more "
        detail += "memory than is free"
        remedy = "--startup-budget SECONDS allows more, or run on a GPU machine"
        checks.append(Check(MEMORY_PROFILE, "skip", detail, remedy))
    else:
        peak = gib(figures.activation_peak_bytes)
        checks.append(Check(MEMORY_PROFILE, "pass", f"activation peak {peak}, measured"))
    return checks


def _gpu_check(gpu: WorkerMemory) -> Check:
    name = MEMORY_PROFILE
    if gpu.activation_peak_bytes is None:
        return Check(name, "skip", "this release of vLLM keeps no figure of its profile")
    tokens = "" if gpu.kv_cache_tokens is None else f", {gpu.kv_cache_tokens:,} tokens"
    pool = f"; KV cache {gib(gpu.kv_cache_bytes)}{tokens}" if gpu.kv_cache_bytes else ""
    peak = f"activation peak {gib(gpu.activation_peak_bytes)}{pool}, measured"
    if gpu.phases and "encoder" not in gpu.phases:
        blind = f"model runner {gpu.runner} profiles no encoder: nothing is reserved for it"
        remedy = "VLLM_USE_V2_MODEL_RUNNER=0 in the environment of vllm serve"
        return Check(name, "warn", f"{peak}; {blind}", remedy)
    return Check(name, "pass", peak)
