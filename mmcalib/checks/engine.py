"""Checks of vLLM on this machine: release, start, profile, and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import REPORT_BUG, Check, RemedyStyle, Status
from mmcalib.checks.facts import CheckFacts
from mmcalib.domain.memory import Budget, EngineStarted, RehearsedMemory, WorkerMemory
from mmcalib.domain.model import ModelInfo, ProcessedItem
from mmcalib.domain.shapes import Modality
from mmcalib.domain.traffic import BurstResult
from mmcalib.errors import EngineDied, EngineError, VllmMoved
from mmcalib.releases.constants import ABOVE_LIMIT, NO_CHAT_TEMPLATE, PROCESSOR_DEVICE_OPTION
from mmcalib.text import MIB, flag, gib, plural

_MORE: Final = "a larger --startup-budget, or run on a GPU machine"
NEEDS_GPU: Final = Check(
    ids.ENGINE_START,
    "skip",
    "not started: this build of vLLM needs a GPU",
    "mmcalib validate FILE on the serving machine, or install vLLM's CPU build here",
)
UNFINISHED: Final = Check(
    ids.RUN_COMPLETION,
    "fail",
    "the run did not finish: results of later steps are missing",
    "run it again with --force",
)


def missing_parts(opened: ModelInfo) -> Iterator[Check]:
    """A warning for each part that is missing in this release of vLLM."""
    for part, why in opened.unavailable.items():
        detail = f"mmcalib cannot read {part} from this release, so it is not checked: {why}"
        yield Check(ids.VLLM_RELEASE, "warn", detail, "mmcalib doctor")


def check_default_starts(facts: CheckFacts) -> Iterator[Check]:
    if error := facts.decision.default_error:
        detail = f"vLLM does not start with its defaults: {error}"
        yield Check(ids.DEFAULT_CONFIGURATION, "warn", detail)


def unstarted_flags_check(names: Sequence[str], gpu: str | None) -> Check:
    """The check of arguments with which no engine starts here; `gpu` is rehearsed."""
    name = ids.NOT_STARTED_WITH.of(", ".join(map(flag, names)))
    why = "they need a GPU and change neither tokens nor the encoder budget"
    if gpu is None:
        return Check(name, "warn", f"{why}; their memory is unknown", "--gpu NAME rehearses them")
    return Check(name, "skip", f"{why}; memory on {gpu} is rehearsed")


def skipped_start_check(depth: str, dialect: RemedyStyle, *, rejected: bool = False) -> Check:
    """Skip the start: `--validate` needs none, or vLLM has rejected the file."""
    if dialect is RemedyStyle.FLAGS:
        detail = f"skipped by --validate {depth}"
        return Check(ids.ENGINE_START, "skip", detail, "--validate replay")
    why = "vLLM rejects the file" if rejected else f"--validate {depth}"
    return Check(ids.ENGINE_START, "skip", f"not started: {why}")


def ended_check(
    error: Exception, remedy: str, *, started: bool, lacking: str = "", free: int | None = None
) -> Check:
    """The check of an engine that did not start or, once `started`, did not replay.

    `lacking` ran out on a machine that will not serve; `free` bytes of memory were free before.
    """
    name = ids.REPLAY if started else ids.ENGINE_START
    if isinstance(error, VllmMoved):
        return Check(name, "warn", f"not checked: {error}", error.hint)
    if lacking:
        why = error.reason if isinstance(error, EngineError) else str(error)
        if isinstance(error, EngineDied) and free is not None:
            why = f"{gib(free)} free before; {why}"
        what = "replayed" if started else "started"
        detail = f"not {what}: this machine ran out of {lacking} ({why})"
        return Check(name, "skip", detail, f"run with more free {lacking}, or {remedy}")
    # If the engine died, its own hint may help too.
    both = f"{remedy}; {error.hint}" if isinstance(error, EngineDied) else remedy
    return Check(name, "fail", str(error), both)


def _profile(tokens: int, items: int, modality: str | None) -> str:
    return f"{tokens} tokens, {items} × {modality}"


def start_check(figures: EngineStarted, budget: Budget, left_out: Sequence[str]) -> Check:
    """Check the engine's encoder budget; `left_out` are arguments that need a GPU."""
    computed = budget.encoder_budget_tokens, budget.profiled_items, budget.profiled_modality
    found = figures.budget_tokens, figures.profiled_items, figures.profiled_modality
    detail = f"started on {figures.device} in {figures.start_s:.0f} s; encoder budget "
    detail += _profile(*found)
    if found != computed:
        detail += f", computed {_profile(*computed)}"
    if left_out:
        detail += f"; not set here, without a GPU: {', '.join(left_out)}"
    return Check(ids.ENGINE_START, "pass" if found == computed else "fail", detail)


def profile_checks(figures: EngineStarted, *, rehearsed: bool) -> Iterator[Check]:
    """Report the profile; nothing if this CPU has none and a GPU's is `rehearsed`."""
    name, peak_bytes = ids.MEMORY_PROFILE, figures.activation_peak_bytes
    if figures.gpu is not None:
        yield gpu_profile_check(figures.gpu)
    elif rehearsed and peak_bytes is None:
        return
    elif figures.computed_in is not None:
        detail = f"this CPU has no bfloat16, so the engine ran in {figures.computed_in} and its "
        detail += "activations have another size"
        yield Check(name, "skip", detail, "--gpu NAME rehearses them without a GPU")
    elif peak_bytes is None:
        estimate = figures.profile_estimate_s or 0.0
        detail = f"the profile takes about {estimate:.0f} s here, or more memory than is free"
        yield Check(name, "skip", detail, _MORE)
    else:
        yield Check(name, "pass", f"activation peak {gib(peak_bytes)}, measured")


def gpu_profile_check(gpu: WorkerMemory) -> Check:
    """Report the profile of a start on a GPU; warn if it ran no encoder."""
    name = ids.MEMORY_PROFILE
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


@dataclass(frozen=True, slots=True)
class ReplayBurst:
    """Prompts to submit at once. `too_heavy` counts prompts beyond the time budget. vLLM only
    admits `admit`; `unseen` more of the same kinds are left out. The last `made_up` prompts are
    synthetic.
    """

    prompts: tuple[object, ...]
    too_heavy: int
    fills_step: bool
    admit: tuple[object, ...] = ()
    unseen: int = 0
    made_up: int = 0
    unreadable: int = 0


def lacks_chat_template(replayed: BurstResult) -> bool:
    """True if the model has no chat template, so that it answers no request."""
    every = replayed.outcomes
    return bool(every) and all(NO_CHAT_TEMPLATE in one.error for one in every)


def replay_check(
    chosen: ReplayBurst, replayed: BurstResult, mismatched: Sequence[str], limit_tokens: int
) -> Check:
    """Check that the engine answered every prompt and counted the measured tokens."""
    name, too_heavy = ids.REPLAY, "exceed --startup-budget or the free memory"
    if lacks_chat_template(replayed):
        why = "not replayed: the model has no chat template"
        return Check(name, "skip", why, "add chat_template.jinja to the model's folder")
    origins = tuple(answer.origin for answer in replayed.outcomes)
    if replayed.rejected:
        words = "; ".join(replayed.rejected[:3])
        remedy = "correct these requests, or --validate startup"
        if ABOVE_LIMIT.search(words):
            remedy = "raise the limit that the error names"
        return Check(name, "fail", words, remedy, origins)
    if mismatched:
        return Check(name, "fail", "; ".join(mismatched[:3]), REPORT_BUG, origins)
    admitted = f", {plural(len(chosen.admit), 'other')} admitted" if chosen.admit else ""
    if not chosen.prompts:
        detail = f"all {chosen.too_heavy} prompts {too_heavy} here"
        if chosen.unreadable:
            detail = f"{chosen.unreadable} prompts have media that cannot be decoded"
        return Check(name, "skip", f"none answered{admitted}: {detail}", _MORE)
    step, own = replayed.largest_encoder_step_tokens, len(chosen.prompts) - chosen.made_up
    made = f" and {chosen.made_up} synthetic ones" if chosen.made_up else ""
    done = f"{own} of the heaviest prompts{made} answered at once{admitted}, with the measured "
    done += f"token counts; largest encoder step {step} of {limit_tokens} tokens"
    if chosen.unseen:
        done += f"; {chosen.unseen} lighter ones were not tried"
    if chosen.unreadable:
        done += f"; {chosen.unreadable} have media that cannot be decoded in time"
    if chosen.too_heavy:
        done += f"; {chosen.too_heavy} {too_heavy}"
    elif not chosen.fills_step:
        done += "; --startup-budget was too short to fill a step"
    else:
        return Check(name, "pass", done)
    return Check(name, "warn", done, _MORE)


@dataclass(slots=True)
class DevicePairs:
    """Results: `items` passed on the CPU, `wrong` has differences by path, `ended` the error."""

    device: str
    items: int = 0
    pairs: dict[Modality, list[tuple[ProcessedItem, ProcessedItem]]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    ended: str = ""


def processor_check(results: DevicePairs) -> Check:
    """Check that all results are the same, and report the speed."""
    name, device, other = ids.PROCESSOR_ON_GPU, results.device, "--device cpu"
    if results.wrong:
        path, why = next(iter(results.wrong.items()))
        detail = f"{path}: {why}; {len(results.wrong)} of {results.items} sampled items differ"
        return Check(name, "fail", detail, f"{PROCESSOR_DEVICE_OPTION}=cpu on the server")
    if results.ended:
        return Check(name, "fail", f"failed: {results.ended}", other)
    if not results.items:
        detail = f"vLLM accepts none of the sampled items on {device} or on the CPU"
        return Check(name, "skip", detail, other)
    same = f"{results.items} sampled items come out the same on {device} as on the CPU"
    what = "tokens, embeds, types and shapes of tensors"
    return Check(name, "pass", "; ".join([f"{same}: {what}", *_speeds(results)]))


def _speeds(results: DevicePairs) -> Iterator[str]:
    """Yield each modality's speed, measured one item at a time without loading."""
    for modality, pairs in results.pairs.items():
        cpu_s, device_s = (sum(m.seconds for m in side) for side in zip(*pairs, strict=True))
        peak = max(result.peak_bytes or 0 for _, result in pairs)
        where = f"at most {peak / MIB:,.1f} MiB each" if peak else "computed on the CPU anyway"
        rates = f"{len(pairs) / device_s:,.1f} items/s, CPU {len(pairs) / cpu_s:,.1f}"
        yield f"{modality} {rates}, {where}"


# The largest errors of a useful prediction: KV cache either way, KV cache too large, encoder peak.
KV_OFF: Final = 0.03
KV_OVER: Final = 0.01
ENCODER_OFF: Final = 0.10
# The loaded model also has tables outside its parameters: rotary embeddings, 2 % of a 3B model.
_WEIGHTS_OFF: Final = 0.05
# Totals of the same GPU are equal; those of other GPUs differ by gibibytes.
_SAME_TOTAL: Final = 0.01


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the memory, in bytes, or in tokens if its name ends so."""

    name: str
    predicted: int
    measured: int

    @property
    def off(self) -> float | None:
        """The error as a share of the measured value; None if that is 0."""
        return self.predicted / self.measured - 1 if self.measured else None


def components(after: RehearsedMemory, figures: EngineStarted) -> list[Component]:
    """Every figure that both have. Those that depend on the GPU's size need the rehearsed GPU."""
    found = [
        ("weights", after.weights_bytes, figures.weights_full_bytes),
        ("KV bytes per token", after.kv_bytes_per_token, figures.kv_full_bytes_per_token),
        ("activation peak", after.activation_peak_bytes, figures.activation_peak_bytes),
    ]
    if (gpu := figures.gpu) is not None:
        peaks = {phase.name: phase.peak_bytes for phase in after.phases}
        found += [(f"{n} peak", peaks[n], gpu.phases.get(n)) for n in peaks]
        beside = after.buffers_bytes + after.non_torch_bytes
        found.append(("beside the weights", beside, gpu.beside_bytes))
        found.append(("CUDA graphs", after.cudagraph_bytes, gpu.cudagraph_bytes))
        total = gpu.total_bytes
        if total is not None and abs(after.total_bytes / total - 1) <= _SAME_TOTAL:
            found.append(("KV pool", after.kv_cache_bytes, gpu.kv_cache_bytes))
            if after.kv_cache_tokens is not None:
                found.append(("KV pool, tokens", after.kv_cache_tokens, gpu.kv_cache_tokens))
    return [Component(name, ours, theirs) for name, ours, theirs in found if theirs is not None]


def _inaccurate_figures(found: Sequence[Component]) -> Iterator[str]:
    """Yield the figures with a larger error than a prediction may have."""
    off = {one.name: one.off for one in found if one.off is not None}
    if (pool := off.get("KV pool")) is not None:
        if pool > KV_OVER:
            yield f"KV pool predicted {pool:.1%} too large"
        elif abs(pool) > KV_OFF:
            yield f"KV pool off by {pool:+.1%}"
    if (encoder := off.get("encoder peak")) is not None and abs(encoder) > ENCODER_OFF:
        yield f"encoder peak off by {encoder:+.0%}"


def prediction_check(after: RehearsedMemory, figures: EngineStarted) -> Check:
    """Compare with the started engine. The peak depends on the device's kernels."""
    found = components(after, figures)
    off = after.weights_bytes / figures.weights_full_bytes - 1
    wrong = after.kv_bytes_per_token != figures.kv_full_bytes_per_token
    missed = list(_inaccurate_figures(found))
    detail = "; ".join([*missed, *(_pair(one, figures.device) for one in found)])
    status: Status = "warn" if wrong or missed or abs(off) > _WEIGHTS_OFF else "pass"
    return Check(ids.PREDICTION, status, detail)


def _pair(one: Component, device: str) -> str:
    if one.name in ("KV bytes per token", "KV pool, tokens"):
        return f"{one.name} {one.measured:,}, predicted {one.predicted:,}"
    where = f" ({device} kernels)" if (one.name, device) == ("activation peak", "cpu") else ""
    return f"{one.name} {gib(one.measured)}{where}, predicted {gib(one.predicted)}"
