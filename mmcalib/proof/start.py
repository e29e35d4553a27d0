"""The engine for real: with this configuration, here, and what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmcalib.checks.check import Check
from mmcalib.checks.facts import Configuration
from mmcalib.checks.reserve import ENGINE_START, MEMORY_PROFILE
from mmcalib.domain.memory import Budget, WorkerMemory
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import EngineStarted, StartEngine
from mmcalib.models.cut import cut_checkpoint, depths, read_config
from mmcalib.progress import Progress
from mmcalib.text import gib

# Two blocks of each stack show every kind of tensor that more would, at a fraction of the time;
# the peak of activations does not depend on depth.
CUT_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Started:
    """The engine's figures, and the depths (text, encoder) that it ran with."""

    figures: EngineStarted
    depths: tuple[int, int]
    true_depths: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """A configuration whose budget was computed, and where and how long it may be tried: files in
    `scratch`, seconds for the profile. `serves`: this machine's GPU is the one that will serve.
    `rehearsed`: the peak of another is known, so that a CPU's need not be traced.
    """

    model_path: Path
    engine_args: Mapping[str, Any]
    budget: Budget
    device: str
    scratch: Path
    budget_s: float
    serves: bool
    rehearsed: bool


def start(host: EngineHost, launch: Launch, progress: Progress) -> Started:
    """Start the real engine; raises EngineError where it does not start.

    Weights are dummies: memory does not care for values. Without a GPU the depth is cut and
    kernels run eagerly.
    """
    path = launch.model_path
    args = {**_batch(launch.budget), **launch.engine_args, "model": str(path)}
    args["load_format"] = "dummy"
    here = true = depths(read_config(path))
    if launch.device == "cpu":
        cut = cut_checkpoint(
            path, launch.scratch / "cut", text_layers=CUT_LAYERS, encoder_layers=CUT_LAYERS
        )
        here = cut.depths
        args |= {"model": str(cut.path), "dtype": "bfloat16", "enforce_eager": True}
        # It would be a share of this machine's memory, whose KV cache another setting sizes.
        args.pop("gpu_memory_utilization", None)
    within_s = None if launch.rehearsed else launch.budget_s
    request = StartEngine(args, (true.text_layers, true.encoder_layers), within_s)
    with progress.step("starting the engine"):
        figures = host.ask(request, "starting the engine")
    return Started(
        figures,
        (here.text_layers, here.encoder_layers),
        (true.text_layers, true.encoder_layers),
    )


def not_started(model: ModelInfo) -> Check | None:
    """Why no engine is started here at all; None where one can be."""
    if model.starts_engines:
        return None
    return Check(
        ENGINE_START,
        "skip",
        "not started: this build of vLLM is for GPUs, and none is here",
        "mmcalib validate --config FILE where it will be served, or vLLM's CPU build here",
    )


def _batch(budget: Budget) -> dict[str, int]:
    """The batch of the server where nothing is said, on the machine that will serve: `vllm.LLM` has
    defaults of its own, and so has this machine.
    """
    return {
        "max_num_batched_tokens": budget.max_num_batched_tokens,
        "max_num_seqs": budget.max_num_seqs,
    }


def _profile(tokens: int, items: int, modality: str | None) -> str:
    return f"{tokens} tokens, {items} × {modality}"


def startup_checks(started: Started, decision: Configuration, *, rehearsed: bool) -> list[Check]:
    """Whether the engine came up with the budget that was computed, and what its profile took."""
    figures, budget = started.figures, decision.budget
    computed = budget.encoder_budget_tokens, budget.profiled_items, budget.profiled_modality
    found = figures.budget_tokens, figures.profiled_items, figures.profiled_modality
    checks = [
        Check(
            ENGINE_START,
            "pass" if found == computed else "fail",
            f"started on {figures.device} in {figures.start_s:.0f} s; encoder budget "
            + _profile(*found)
            + ("" if found == computed else f", computed {_profile(*computed)}"),
        )
    ]
    if figures.gpu is not None:
        checks.append(_gpu_check(figures.gpu))
    elif rehearsed and figures.activation_peak_bytes is None:
        pass  # The GPU's peak was rehearsed, and this CPU's decides nothing.
    elif figures.computed_in is not None:
        checks.append(
            Check(
                MEMORY_PROFILE,
                "skip",
                "this CPU has no bfloat16 of its own: the engine computed in "
                f"{figures.computed_in}, and its activations took other bytes",
                "--gpu NAME rehearses them, without a GPU",
            )
        )
    elif figures.activation_peak_bytes is None:
        estimate = figures.profile_estimate_s or 0.0
        checks.append(
            Check(
                MEMORY_PROFILE,
                "skip",
                f"encoding the profile's items would take about {estimate:.0f} s here, or more "
                "memory than is free",
                "--startup-budget SECONDS allows more, or run on a GPU machine",
            )
        )
    else:
        peak = gib(figures.activation_peak_bytes)
        checks.append(Check(MEMORY_PROFILE, "pass", f"activation peak {peak}, measured"))
    return checks


def _gpu_check(gpu: WorkerMemory) -> Check:
    """What vLLM found on the GPU that it started on."""
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
