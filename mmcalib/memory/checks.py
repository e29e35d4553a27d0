"""Checks of rehearsed memory: does it start, is enough reserved, is it better than the default."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mmcalib.checks import catalogue as ids
from mmcalib.checks.catalogue import CheckId
from mmcalib.checks.check import Check, Status
from mmcalib.checks.facts import JudgedConfig
from mmcalib.checks.limits import size_hint
from mmcalib.configs.opening import CHANGE_SETTING, refusal_text
from mmcalib.derive.demand import Demand, LanguageStep, MergeStep, PromptsStep, Shortfall, WorstStep
from mmcalib.derive.limits import LIMIT
from mmcalib.derive.policy import Policy
from mmcalib.domain.memory import RehearsedMemory, floor_utilization
from mmcalib.domain.shapes import MODALITIES
from mmcalib.engine.messages import EngineStarted
from mmcalib.errors import ConfigRejected
from mmcalib.memory.rehearse import Predicted
from mmcalib.memory.worst_steps import find_shortfall, worst_step_configs
from mmcalib.proof.start import Started
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.results.memory import ServedTraffic, TrafficFigures
from mmcalib.text import gib, remaining

_UNKNOWN: Final = (
    "the bytes are unknown for padded or tiled items, for cached items that keep their batch, for "
    "their merge, and for the language model with a full cache"
)


@dataclass(frozen=True, slots=True)
class Unrehearsed:
    """Why nothing was rehearsed, and the command that rehearses it."""

    why: str
    settles: str


def no_gpu(command: str) -> Unrehearsed:
    """For a job without --gpu; `command` is the same job with `--gpu NAME`."""
    return Unrehearsed("--gpu was not given", f"{command} rehearses it, without a GPU")


def not_rehearsed(predicted: Predicted, command: str) -> Unrehearsed:
    """For rehearsals that ended early; `command` is an `mmcalib rehearse` that shows one."""
    gpu = predicted.gpu.name
    # `memory on …` has the whole message, and the command shows more.
    reason = predicted.failure.reason.partition(". ")[0] if predicted.failure else ""
    reason = reason or "the profile leaves out the encoder"
    return Unrehearsed(
        f"rehearsals on {gpu} ended early, the first with: {reason}",
        f"{command} {predicted.gpu.flags} --verbose shows why; --validate replay on such a GPU "
        "replays the heaviest prompts",
    )


def qualify_tokens_only(
    checks: Iterable[Check], decision: JudgedConfig, unrehearsed: Unrehearsed
) -> list[Check]:
    """The checks, with a warning if the reserve passes in tokens only, which decides no verdict."""
    found = list(checks)
    for place, check in enumerate(found):
        if check.id == ids.MEMORY_RESERVE and decision.budget.encoder_budget_tokens:
            why = f"only tokens were compared, because {unrehearsed.why}; {_UNKNOWN}"
            found[place] = replace(
                check,
                status="warn" if check.status == "pass" else check.status,
                detail=f"{check.detail}; {why}",
                remedy=check.remedy or unrehearsed.settles,
            )
    return found


# The largest errors of a useful prediction: KV cache either way, KV cache too large, encoder peak.
KV_OFF: Final = 0.03
KV_OVER: Final = 0.01
ENCODER_OFF: Final = 0.10
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


def inaccurate_figures(found: list[Component]) -> list[str]:
    """The figures with a larger error than a prediction may have."""
    off = {one.name: one.off for one in found if one.off is not None}
    missed = []
    if (pool := off.get("KV pool")) is not None:
        if pool > KV_OVER:
            missed.append(f"KV pool predicted {pool:.1%} too large")
        elif abs(pool) > KV_OFF:
            missed.append(f"KV pool off by {pool:+.1%}")
    if (encoder := off.get("encoder peak")) is not None and abs(encoder) > ENCODER_OFF:
        missed.append(f"encoder peak off by {encoder:+.0%}")
    return missed


# The loaded model also has tables outside its parameters: rotary embeddings, 2 % of a 3B model.
_WEIGHTS_OFF: Final = 0.05
# Smaller workspaces are not mentioned: cuBLAS keeps tens of MiB.
_NOTABLE_BYTES: Final = 64 << 20


def kv_cache_gain(before: RehearsedMemory | None, after: RehearsedMemory) -> str:
    """The KV cache with the tuned settings and with vLLM's defaults, on one line."""
    now = f"KV cache {gib(after.kv_cache_bytes)}, {after.kv_cache_tokens:,} tokens"
    if before is None:
        return now
    if before.kv_cache_tokens is None:
        return f"{now}; vLLM does not start with its defaults ({remaining(before.kv_cache_bytes)})"
    return f"{now}; by default {gib(before.kv_cache_bytes)}, {before.kv_cache_tokens:,} tokens"


def memory_checks(
    predicted: Predicted, started: Started | None, concurrency: float | None = None
) -> list[Check]:
    """Check that the tuned settings start, have the concurrency, and match the prediction."""
    name, after = ids.MEMORY_ON.of(predicted.gpu.name), predicted.calibrated
    if after is None:
        if isinstance(predicted.failure, ConfigRejected):
            detail = f"vLLM does not start: {refusal_text(predicted.failure)}"
            return [Check(name, "fail", detail, predicted.failure.hint or CHANGE_SETTING)]
        detail = f"not rehearsed: {predicted.failure}"
        return [Check(name, "skip", detail, "mmcalib rehearse --help")]
    if after.kv_cache_tokens is None:
        remedy = "--max-model-len fit, a larger --gpu, or mmcalib plan"
        detail = f"vLLM does not start, rehearsed: {after.problem}"
        return [Check(name, "fail", detail, remedy)]
    checks = [Check(name, "pass", f"{kv_cache_gain(predicted.default, after)}, rehearsed")]
    checks += outside_check(after)
    if concurrency is not None and after.max_concurrency is not None:
        length = after.budget.max_model_len if after.budget else 0
        detail = f"{after.max_concurrency:.2f} requests of {length:,} tokens fit at once, and "
        detail += f"--concurrency is {concurrency:g}, rehearsed"
        check = Check(ids.CONCURRENCY, "pass", detail)
        if after.max_concurrency < concurrency:
            remedy = f'mmcalib plan --goal "concurrency>={concurrency:g}"'
            check = replace(check, status="fail", remedy=remedy)
        checks.append(check)
    if after.budget is not None and after.encoder_peak_bytes is None:
        detail = f"vLLM {after.vllm} does not profile the encoder, so it reserves nothing for it"
        remedy = "a lower --gpu-memory-utilization makes room"
        checks.append(Check(ids.ENCODER_RESERVE, "warn", detail, remedy))
    if started is not None:
        checks.append(_compare_with_engine(after, started))
    return checks


def outside_check(after: RehearsedMemory) -> Iterator[Check]:
    """Check that what the start takes outside vLLM's reserve fits next to other processes."""
    most = after.most_utilization
    if not after.starts:
        remedy = f"--gpu-memory-utilization {most:g}" if most else "free memory on the GPU"
        yield Check(ids.OUTSIDE, "fail", f"vLLM does not start: {after.start_problem}", remedy)
        return
    if after.division.is_extensible:
        left = f"vLLM sizes its extensible KV cache last, and leaves {gib(after.spare_bytes)} free"
        yield Check(ids.OUTSIDE, "pass", left)
        return
    parts = ", ".join(f"{o.name} {gib(o.nbytes)}, {o.label}" for o in after.after_pool)
    needs = f"{gib(after.needed_outside_bytes)} ({parts})" if parts else "nothing"
    left = f"the start needs {needs} outside its reserve, where {gib(after.outside_bytes)} are free"
    for one in after.before_snapshot:
        left += f"; {one.name} took {gib(one.nbytes)} before, {one.label}"
    yield Check(ids.OUTSIDE, "pass", left)


def comparison_check(
    predicted: Predicted,
    traffic: ServedTraffic | None,
    decision: JudgedConfig,
    policy: Policy,
    default_problem: str = "",
) -> Check | None:
    """Compare the tuned settings with vLLM's defaults; None if not rehearsed. Fails if memory or
    concurrency is worse, no option of the user explains it, and the defaults serve the corpus;
    `default_problem` says why they do not.
    """
    before, after = predicted.default, predicted.calibrated
    if before is None or after is None or after.kv_cache_tokens is None:
        return None
    if before.kv_cache_tokens is None or (after.starts and not before.starts):
        detail = "vLLM starts with these settings, and not with its defaults"
        return Check(ids.BETTER, "pass", detail)
    figures = list(_compared(before, after, traffic))
    summary = ", ".join(f"{name} {figure}" for name, figure, _ in figures) + ", rehearsed"
    if default_problem:
        detail = f"vLLM's defaults {default_problem}; these settings do not, at this price: "
        return Check(ids.BETTER, "pass", detail + summary)
    worse = [name for name, _, is_worse in figures if is_worse]
    if not worse:
        turned = {"mm_processor_kwargs", "media_io_kwargs"} & decision.engine_args.keys()
        if turned or after.kv_cache_tokens > before.kv_cache_tokens:
            return Check(ids.BETTER, "pass", summary)
        detail = "no other setting has 2% more KV cache and reserves enough: engine.yaml only adds "
        detail += f"limits and context length: {summary}"
        return Check(ids.KEEP_DEFAULTS, "pass", detail)
    asked = policy.prefer != "quality" or policy.max_tokens_per_item
    asked = asked or policy.max_num_batched_tokens or policy.max_num_seqs
    limits = json.dumps(decision.engine_args.get("limit_mm_per_prompt", {}))
    keep = f"vLLM's defaults with --limit-mm-per-prompt '{limits}'"
    if policy.max_num_batched_tokens is not None:
        keep = "leave out --max-num-batched-tokens"
    detail = f"worse than vLLM's defaults in {' and '.join(worse)}: {summary}"
    return Check(ids.BETTER, "warn" if asked else "fail", detail, keep)


def _compared(
    before: RehearsedMemory, after: RehearsedMemory, traffic: ServedTraffic | None
) -> Iterator[tuple[str, str, bool]]:
    """KV cache, concurrency and load with the defaults and as tuned: (name, figures, is worse)."""
    had, has = before.kv_cache_tokens or 0, after.kv_cache_tokens or 0
    yield "KV cache tokens", f"{had:,} → {has:,}", has < had
    usual, now = before.max_concurrency or 0, after.max_concurrency or 0
    yield "full-length requests at once", f"{usual:,.1f} → {now:,.1f}", now < usual
    if traffic is None or traffic.default is None:
        return
    larger = steps_are_larger(before, after)
    yield from _under_load(traffic.default, traffic.calibrated, larger_steps=larger)


def steps_are_larger(before: RehearsedMemory | None, after: RehearsedMemory | None) -> bool:
    """True if a step may take more tokens, so that counts of steps do not compare."""
    if before is None or after is None or before.budget is None or after.budget is None:
        return True
    return after.budget.max_num_batched_tokens > before.budget.max_num_batched_tokens


def serves_worse(
    before: TrafficFigures | None, after: TrafficFigures, *, larger_steps: bool
) -> bool:
    """True if the same requests run worse than with vLLM's defaults, which may not start."""
    if before is None:
        return _falls_short(after.margin.nbytes, 0)
    return any(worse for _, _, worse in _under_load(before, after, larger_steps=larger_steps))


def _under_load(
    before: TrafficFigures, after: TrafficFigures, *, larger_steps: bool
) -> Iterator[tuple[str, str, bool]]:
    left = before.margin.nbytes, after.margin.nbytes
    figure = f"{remaining(left[0])} → {remaining(left[1])}"
    yield "reserve left under load", figure, _falls_short(left[1], left[0])
    if before.served != after.served:  # the defaults reject some
        return
    figure = f"{before.preemptions:,} → {after.preemptions:,}"
    if after.preemptions <= before.preemptions:
        yield "preemptions", figure, False
        return
    # More concurrency brings more preemptions, which is worse only if all takes more steps.
    figure += f" in {before.steps:,} → {after.steps:,} steps"
    yield "preemptions", figure, larger_steps or after.steps > before.steps


def _falls_short(left_bytes: int, default_bytes: int) -> bool:
    """True if load exceeds the reserve by more than by default, and by more than the slack."""
    return left_bytes < min(0, default_bytes) - VLLM_SLACK_BYTES


def reserved_check(
    predicted: Predicted,
    decision: JudgedConfig,
    *,
    allow_under_reserve: bool,
    remedies: Sequence[str] = (),
) -> Check | None:
    """The reserve in bytes; None if a step was not rehearsed. `remedies` are rehearsed.

    Warns if the step exceeds the reserve and fits in what stays free outside it. Fails if not, or
    if a setting shrinks the profile and not the step.
    """
    found, after = predicted_shortfall(predicted, decision), predicted.calibrated
    if found is None or after is None:
        return None
    worst, total = found.worst, found.total_bytes
    names = (worst.exemplar,) if isinstance(worst, WorstStep) and worst.exemplar else ()
    profiled = gib(found.reserved_bytes - found.spare_bytes)
    detail = f"{_describe(worst)}; the profile reserves {profiled}, rehearsed"
    if found.spare_bytes:
        detail += f", and {gib(found.spare_bytes)} are free beside the KV cache"
    # What does not start leaves no memory to divide.
    if found.passes and found.is_tight and after.kv_cache_tokens is not None:
        detail += (
            f"; gpu_memory_utilization leaves {gib(found.outside_bytes)} for the CUDA context, "
            "fragmentation and kernels, too little under load"
        )
        # Room for vLLM's own slack.
        roomy = floor_utilization(
            after.requested_bytes + after.outside_bytes - VLLM_SLACK_BYTES, total
        )
        remedy = f"--gpu-memory-utilization {roomy:g}"
        return Check(ids.MEMORY_RESERVE, "warn", detail, remedy, names)
    if found.passes:
        beyond = found.nbytes >> 20
        detail += f"; {beyond} MiB more fit in vLLM's own slack" if beyond > 0 else ""
        return Check(ids.MEMORY_RESERVE, "pass", detail, names=names)
    args = decision.engine_args
    hinted = any(size_hint(args.get(LIMIT) or {}, modality) for modality in MODALITIES)
    made = (hinted or args.get("skip_mm_profiling")) and not decision.adequacy.passes
    if found.fits_outside and not made:
        detail += f"; vLLM does not reserve {gib(found.unreserved_bytes or found.nbytes)} of it"
        detail += f"{_owner(worst, after)}, and the start leaves {gib(found.outside_bytes)} free "
        detail += "outside its reserve, where it fits"
        remedy = "keep that memory free of other processes"
        return Check(ids.MEMORY_RESERVE, "warn", detail, remedy, names)
    needed = gib(after.requested_bytes + found.nbytes)
    other = f"a GPU with {needed} for vLLM, a smaller --max-tokens-per-item or "
    other += "--max-num-batched-tokens"
    budget = decision.budget
    if 2 * budget.max_tokens_per_item.get("video", 0) > budget.max_model_len:
        # vLLM's largest video fills the context.
        other = f"a smaller --max-model-len, {other}"
    return Check(
        ids.MEMORY_RESERVE,
        "warn" if allow_under_reserve else "fail",
        f"under-reserved by {gib(found.nbytes)}: {detail}; out of memory under load",
        f"{', or '.join(remedies) or other}, or --allow-under-reserve",
        names,
    )


def _owner(worst: Demand, after: RehearsedMemory) -> str:
    """Say what takes memory that no profile of vLLM includes; empty for items themselves."""
    if isinstance(worst, PromptsStep):
        return " (states and scratch of recurrent layers, vllm#52872)"
    if not isinstance(worst, WorstStep) or not worst.kept_bytes:
        return ""
    flashinfer = "FLASHINFER" in after.attention
    return " (FlashInfer's workspace)" if flashinfer else " (workspaces of kernels)"


def predicted_shortfall(predicted: Predicted, decision: JudgedConfig) -> Shortfall | None:
    """The shortfall of the reserve; None if a part is unrehearsed or nothing needs memory."""
    after = predicted.calibrated
    served = [m for m, _ in worst_step_configs(decision)]
    if after is None or any(m not in predicted.steps for m in served):
        return None
    # Embeddings from clients have no steps but need memory.
    if not after.phases or not (decision.budget.encoder_cache_size or after.prefills):
        return None
    return find_shortfall(decision, after, predicted.steps)


def rehearsed_inputs(after: RehearsedMemory | None) -> set[CheckId]:
    """The input memory checks that a rehearsal answers in bytes."""
    steps = after.steps if after else ()
    return {
        ids.INPUT_MEMORY.of(one.step.shape.modality) for one in steps if one.peak_bytes is not None
    }


def _describe(demand: Demand) -> str:
    parts = []
    if held := demand.resident.nbytes:
        parts.append(f"{demand.resident.tokens:,} tokens in the encoder cache ({gib(held)})")
    if isinstance(demand, WorstStep) and demand.kept_bytes >= _NOTABLE_BYTES:
        parts.append(f"{gib(demand.kept_bytes)} of kernels' workspaces")
    more = f" beside {' and '.join(parts)}" if parts else ""
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
        case MergeStep():
            what = f"the merge of {demand.tokens:,} tokens into the text"
    return f"{what} takes {gib(demand.peak_bytes)}{more}"


def _compare_with_engine(after: RehearsedMemory, started: Started) -> Check:
    """Compare with the started engine. The peak depends on the device's kernels."""
    figures = started.figures
    found = components(after, figures)
    off = after.weights_bytes / figures.weights_full_bytes - 1
    wrong = after.kv_bytes_per_token != figures.kv_full_bytes_per_token
    missed = inaccurate_figures(found)
    detail = "; ".join([*missed, *(_pair(one, figures) for one in found)])
    status: Status = "warn" if wrong or missed or abs(off) > _WEIGHTS_OFF else "pass"
    return Check(ids.PREDICTION, status, detail)


def _pair(one: Component, figures: EngineStarted) -> str:
    match one.name:
        case "KV bytes per token":
            return f"KV bytes per token {one.measured:,}, predicted {one.predicted:,}"
        case "KV pool, tokens":
            return f"{one.name} {one.measured:,}, predicted {one.predicted:,}"
    kernels = one.name == "activation peak" and figures.device == "cpu"
    where = f" ({figures.device} kernels)" if kernels else ""
    return f"{one.name} {gib(one.measured)}{where}, predicted {gib(one.predicted)}"
