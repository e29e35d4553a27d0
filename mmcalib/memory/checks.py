"""Checks of rehearsed memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mmcalib.checks.catalogue import (
    BETTER,
    CONCURRENCY,
    ENCODER_ESTIMATE,
    ENCODER_RESERVE,
    INPUT_MEMORY,
    KEEP_DEFAULTS,
    MEMORY_ON,
    MEMORY_RESERVE,
    PREDICTION,
    CheckId,
)
from mmcalib.checks.check import Check, Status
from mmcalib.checks.facts import JudgedConfig
from mmcalib.derive.demand import Demand, LanguageStep, Merge, PromptsStep, Shortfall, WorstStep
from mmcalib.derive.policy import Policy
from mmcalib.domain.memory import Rehearsed
from mmcalib.engine.messages import EngineStarted
from mmcalib.memory.figures import disagreement
from mmcalib.memory.rehearse import Predicted
from mmcalib.memory.worst_steps import configurations, shortfall
from mmcalib.proof.start import Started
from mmcalib.releases.constants import CONTEXT_BYTES, VLLM_SLACK_BYTES
from mmcalib.results.memory import ServedTraffic, TrafficFigures
from mmcalib.text import first_sentence, gib, room

_UNKNOWN: Final = (
    "bytes are not known of padded or tiled items, cached outputs that keep their batch, their "
    "merge, and the language model beside a full cache"
)


@dataclass(frozen=True, slots=True)
class Unrehearsed:
    """Why nothing was rehearsed, and what would tell the bytes."""

    why: str
    settles: str


def no_gpu(command: str) -> Unrehearsed:
    """Of a job that was given no GPU; `command` is the same job with `--gpu NAME`."""
    return Unrehearsed("no GPU was named", f"{command} rehearses it; no GPU is needed for that")


def not_rehearsed(predicted: Predicted, command: str) -> Unrehearsed:
    """Of rehearsals that ended early; `command` is the `mmcalib rehearse` that shows one."""
    gpu = predicted.gpu.name
    # `memory on ...` has the whole, and the command shows more.
    reason = first_sentence(predicted.failure.reason) if predicted.failure else ""
    reason = reason or "the profile holds nothing of the encoder"
    return Unrehearsed(
        f"rehearsals on {gpu} ended early, the first with: {reason}",
        f"{command} {predicted.gpu.flags} --verbose shows why; --validate replay on such a "
        "GPU sends it the heaviest prompts",
    )


def qualify_tokens_only(
    checks: Iterable[Check], decision: JudgedConfig, unrehearsed: Unrehearsed
) -> list[Check]:
    """The checks, with a warning where R4 passes in tokens alone, which decides no verdict."""
    if not decision.budget.encoder_budget_tokens:
        return list(checks)
    found = list(checks)
    for place, check in enumerate(found):
        if check.id == MEMORY_RESERVE:
            why = f"only tokens were compared, because {unrehearsed.why}; {_UNKNOWN}"
            found[place] = replace(
                check,
                status="warn" if check.status == "pass" else check.status,
                detail=f"{check.detail}; {why}",
                remedy=check.remedy or unrehearsed.settles,
            )
    return found


# Most error of a useful prediction: KV pool either way and promised beyond, encoder peak.
KV_OFF: Final = 0.03
KV_OVER: Final = 0.01
ENCODER_OFF: Final = 0.10
# Totals of one GPU are read the same way and differ by nothing; those of others by gibibytes.
_SAME_TOTAL: Final = 0.01


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the memory, in bytes (tokens where its name says so)."""

    name: str
    predicted: int
    measured: int

    @property
    def off(self) -> float | None:
        """The error as a share of what was measured; None of nothing."""
        return self.predicted / self.measured - 1 if self.measured else None


def components(after: Rehearsed, figures: EngineStarted) -> list[Component]:
    """Every figure that both have; on another GPU than the rehearsed one not those of its size."""
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


def misses(found: list[Component]) -> list[str]:
    """Which of a GPU's figures are further off than a prediction may be, in words."""
    off = {one.name: one.off for one in found if one.off is not None}
    missed = []
    if (pool := off.get("KV pool")) is not None:
        if pool > KV_OVER:
            missed.append(f"KV pool over-promised by {pool:.1%}")
        elif abs(pool) > KV_OFF:
            missed.append(f"KV pool off by {pool:+.1%}")
    if (encoder := off.get("encoder peak")) is not None and abs(encoder) > ENCODER_OFF:
        missed.append(f"encoder peak off by {encoder:+.0%}")
    return missed


# The loaded model also holds tables that are no parameters: rotary embeddings, some 2 % of a 3B.
_WEIGHTS_OFF: Final = 0.05
# Workspaces that are named: cuBLAS keeps tens of MiB.
_SAID_BYTES: Final = 64 << 20


def kv_cache_gain(before: Rehearsed | None, after: Rehearsed) -> str:
    """KV cache of the default and of the calibrated configuration, on one line."""
    now = f"KV cache {gib(after.kv_cache_bytes)}, {after.kv_cache_tokens:,} tokens"
    if before is None:
        return now
    if before.kv_cache_tokens is None:
        return f"{now}; the default would not start ({room(before.kv_cache_bytes)})"
    return f"{now}; default {gib(before.kv_cache_bytes)}, {before.kv_cache_tokens:,} tokens"


def memory_checks(
    predicted: Predicted, started: Started | None, model_path: str, concurrency: float | None = None
) -> list[Check]:
    """Whether the calibrated config starts and holds `concurrency` sequences, as predicted."""
    name, after = MEMORY_ON.of(predicted.gpu.name), predicted.calibrated
    if after is None:
        detail = f"not rehearsed: {predicted.failure}"
        return [Check(name, "skip", detail, "mmcalib rehearse --help")]
    if after.kv_cache_tokens is None:
        remedy = "--max-model-len fit or less, --gpu a larger one, or what `mmcalib plan` finds"
        detail = f"vLLM would not start, rehearsed: {after.problem}"
        return [Check(name, "fail", detail, remedy)]
    checks = [Check(name, "pass", f"{kv_cache_gain(predicted.default, after)}, rehearsed")]
    if concurrency is not None and after.max_concurrency is not None:
        length = after.budget.max_model_len if after.budget else 0
        detail = f"{after.max_concurrency:.2f} sequences of {length:,} tokens fit, "
        detail += f"{concurrency:g} are wanted, rehearsed"
        check = Check(CONCURRENCY, "pass", detail)
        if after.max_concurrency < concurrency:
            remedy = f'mmcalib plan --goal "concurrency>={concurrency:g}"'
            check = replace(check, status="fail", remedy=remedy)
        checks.append(check)
    if after.budget is not None and after.encoder_peak_bytes is None:
        detail = f"vLLM {after.vllm} reserves nothing for the encoder: its profile leaves it out"
        remedy = "a lower --gpu-memory-utilization makes room"
        checks.append(Check(ENCODER_RESERVE, "warn", detail, remedy))
    if differs := disagreement(after, model_path):
        checks.append(Check(ENCODER_ESTIMATE, "warn", differs))
    if started is not None:
        checks.append(_true(after, started))
    return checks


def comparison_check(
    predicted: Predicted, traffic: ServedTraffic | None, decision: JudgedConfig, policy: Policy
) -> Check | None:
    """The calibrated configuration against vLLM's defaults, as rehearsed: fails where it is worse
    on memory and the user asked for nothing that explains it. None if not rehearsed.
    """
    before, after = predicted.default, predicted.calibrated
    if before is None or after is None or after.kv_cache_tokens is None:
        return None
    if before.kv_cache_tokens is None:
        said = "vLLM does not start with its defaults, and does with these"
        return Check(BETTER, "pass", said)
    figures = list(_compared(before, after, traffic))
    said = ", ".join(f"{name} {figure}" for name, figure, _ in figures) + ", rehearsed"
    worse = [name for name, _, is_worse in figures if is_worse]
    if not worse:
        turned = {"mm_processor_kwargs", "media_io_kwargs"} & decision.engine_args.keys()
        if turned or after.kv_cache_tokens > before.kv_cache_tokens:
            return Check(BETTER, "pass", said)
        detail = "nothing tried has more KV cache and reserves enough"
        detail += f"; the file only adds limits and context: {said}"
        return Check(KEEP_DEFAULTS, "pass", detail)
    asked = not policy.keeps_quality or policy.max_num_batched_tokens or policy.max_num_seqs
    limits = json.dumps(decision.engine_args.get("limit_mm_per_prompt", {}))
    keep = f"vLLM's defaults with --limit-mm-per-prompt '{limits}'"
    if policy.max_num_batched_tokens is not None:
        keep = "leave out --max-num-batched-tokens"
    detail = f"worse than vLLM's defaults in {' and '.join(worse)}: {said}"
    return Check(BETTER, "warn" if asked else "fail", detail, keep)


def _compared(
    before: Rehearsed, after: Rehearsed, traffic: ServedTraffic | None
) -> Iterator[tuple[str, str, bool]]:
    """KV cache, requests at once and load by default and as calibrated, and what is worse."""
    had, has = before.kv_cache_tokens or 0, after.kv_cache_tokens or 0
    yield "KV cache tokens", f"{had:,} → {has:,}", has < had
    usual, now = before.max_concurrency or 0, after.max_concurrency or 0
    yield "requests of full length at once", f"{usual:,.1f} → {now:,.1f}", now < usual
    if traffic is None or traffic.default is None:
        return
    larger = steps_are_larger(before, after)
    yield from _under_load(traffic.default, traffic.calibrated, larger_steps=larger)


def steps_are_larger(before: Rehearsed | None, after: Rehearsed | None) -> bool:
    """Whether a step may take more tokens, so that numbers of steps do not compare."""
    if before is None or after is None or before.budget is None or after.budget is None:
        return True
    return after.budget.max_num_batched_tokens > before.budget.max_num_batched_tokens


def serves_worse(
    before: TrafficFigures | None, after: TrafficFigures, *, larger_steps: bool
) -> bool:
    """Whether the same requests run worse than with vLLM's defaults, which may not start."""
    if before is None:
        return _falls_short(after.margin.nbytes, 0)
    return any(worse for _, _, worse in _under_load(before, after, larger_steps=larger_steps))


def _under_load(
    before: TrafficFigures, after: TrafficFigures, *, larger_steps: bool
) -> Iterator[tuple[str, str, bool]]:
    left = before.margin.nbytes, after.margin.nbytes
    said = f"{room(left[0])} → {room(left[1])}"
    yield "reserve left under load", said, _falls_short(left[1], left[0])
    if before.served != after.served:  # the defaults refuse some
        return
    said = f"{before.preemptions:,} → {after.preemptions:,}"
    if after.preemptions <= before.preemptions:
        yield "preemptions", said, False
        return
    # Where more run at once, more are preempted: that is a loss if serving them all takes longer.
    said += f" in {before.steps:,} → {after.steps:,} steps"
    yield "preemptions", said, larger_steps or after.steps > before.steps


def _falls_short(left_bytes: int, default_bytes: int) -> bool:
    """Whether load takes more beyond the reserve than by default, and than vLLM's own slack."""
    return left_bytes < min(0, default_bytes) - VLLM_SLACK_BYTES


def reserved_check(
    predicted: Predicted,
    decision: JudgedConfig,
    *,
    allow_under_reserve: bool,
    cures: Sequence[str] = (),
) -> Check | None:
    """R4 in bytes, which decides; None if a step was not rehearsed. `cures` are rehearsed fixes."""
    found, after = predicted_shortfall(predicted, decision), predicted.calibrated
    if found is None or after is None:
        return None
    profiled = gib(found.reserved_bytes - found.spare_bytes)
    spare = f", and {gib(found.spare_bytes)} are free beside the KV cache"
    detail = f"{_said(found.worst)}; the profile reserves {profiled}, rehearsed"
    worst = found.worst
    names = (worst.exemplar,) if isinstance(worst, WorstStep) and worst.exemplar else ()
    detail += spare if found.spare_bytes else ""
    if found.passes and found.is_tight:
        detail += (
            f"; gpu_memory_utilization leaves {gib(found.outside_bytes)} to the CUDA context, to "
            "fragmentation and to kernels: too little under load"
        )
        # It leaves room for the CUDA context and vLLM's own slack.
        roomy = math.floor(100 * (1 - (CONTEXT_BYTES + VLLM_SLACK_BYTES) / after.total_bytes)) / 100
        return Check(MEMORY_RESERVE, "warn", detail, f"--gpu-memory-utilization {roomy:g}", names)
    if found.passes:
        beyond = found.nbytes >> 20
        slack = f"; {beyond} MiB beyond it are within vLLM's own slack"
        return Check(MEMORY_RESERVE, "pass", detail + (slack if beyond > 0 else ""), names=names)
    if found.fits_outside and (unreserved := found.unreserved_bytes):
        owner = "workspaces of kernels"
        if isinstance(worst, PromptsStep):
            owner = "states and scratch of recurrent layers, vllm#52872"
        elif "FLASHINFER" in after.attention:
            owner = "FlashInfer's workspace"
        detail += f"; vLLM reserves {gib(unreserved)} of it nowhere ({owner}), and "
        detail += f"gpu_memory_utilization leaves {gib(found.outside_bytes)}"
        lower = 1 - (found.outside_bytes + found.nbytes) / after.total_bytes
        keeps = f"--gpu-memory-utilization {math.floor(100 * lower) / 100:g}"
        covers = f"{', or '.join(cures) or keeps}"
        return Check(MEMORY_RESERVE, "warn", detail, covers, names)
    where = "out of memory under load"
    if found.fits_outside:
        where = "it would eat what --gpu-memory-utilization leaves to others"
    other = "--max-tokens-per-item less, a smaller --max-num-batched-tokens"
    budget = decision.budget
    if 2 * budget.max_tokens_per_item.get("video", 0) > budget.max_model_len:
        # vLLM's largest video is as long as the context lets it be.
        other = f"a smaller --max-model-len, {other}"
    return Check(
        MEMORY_RESERVE,
        "warn" if allow_under_reserve else "fail",
        f"under-reserved by {gib(found.nbytes)}: {detail}; {where}",
        f"{', or '.join(cures) or other}, or --allow-under-reserve",
        names,
    )


def predicted_shortfall(predicted: Predicted, decision: JudgedConfig) -> Shortfall | None:
    """What decides it, None where a part of it could not be rehearsed or there is nothing to hold:
    a modality that takes embeddings alone has no steps, and is held all the same.
    """
    after = predicted.calibrated
    served = [m for m, _ in configurations(decision)]
    if after is None or any(m not in predicted.steps for m in served):
        return None
    if not after.phases or not (decision.budget.encoder_cache_size or after.prefills):
        return None
    return shortfall(decision, after, predicted.steps)


def known_in_bytes(after: Rehearsed | None) -> set[CheckId]:
    """The checks of what the encoder is given, of which a rehearsal says what it takes."""
    steps = after.steps if after else ()
    return {INPUT_MEMORY.of(one.step.shape.modality) for one in steps if one.peak_bytes is not None}


def _said(demand: Demand) -> str:
    parts = []
    if held := demand.resident.nbytes:
        parts.append(f"{demand.resident.tokens:,} tokens in the encoder cache ({gib(held)})")
    if isinstance(demand, WorstStep) and demand.kept_bytes >= _SAID_BYTES:
        parts.append(f"{gib(demand.kept_bytes)} of kernels' workspaces")
    beside = f" beside {' and '.join(parts)}" if parts else ""
    match demand:
        case WorstStep(items=items) if items:
            like = f"{items:,} items such as {demand.exemplar}, {demand.tokens:,} tokens of"
            what = f"the costliest step, {like} {demand.modality},"
        case WorstStep():
            what = f"the costliest step, {demand.tokens:,} tokens of {demand.modality},"
        case LanguageStep():
            what = f"the language model's step of {demand.tokens:,} tokens"
        case PromptsStep(prompts=prompts):
            of = "one prompt" if prompts == 1 else f"{prompts:,} prompts"
            what = f"the language model's step of {demand.tokens:,} tokens of {of}, as served,"
        case Merge():
            what = f"the merge of {demand.tokens:,} tokens with those of the text"
    return f"{what} takes {gib(demand.peak_bytes)}{beside}"


def _true(after: Rehearsed, started: Started) -> Check:
    """Weights and KV bytes per token do not depend on the device; the peak does, on its kernels."""
    figures = started.figures
    found = components(after, figures)
    off = after.weights_bytes / figures.weights_full_bytes - 1
    wrong = after.kv_bytes_per_token != figures.kv_full_bytes_per_token
    missed = misses(found)
    detail = "; ".join([*missed, *(_pair(one, figures) for one in found)])
    status: Status = "warn" if wrong or missed or abs(off) > _WEIGHTS_OFF else "pass"
    return Check(PREDICTION, status, detail)


def _pair(one: Component, figures: EngineStarted) -> str:
    match one.name:
        case "KV bytes per token":
            return f"KV {one.predicted:,} B per token against {one.measured:,}"
        case "KV pool, tokens":
            return f"{one.name} {one.predicted:,} against {one.measured:,}"
    kernels = one.name == "activation peak" and figures.device == "cpu"
    where = f" ({figures.device} kernels)" if kernels else ""
    return f"{one.name} {gib(one.predicted)} against {gib(one.measured)}{where}"
