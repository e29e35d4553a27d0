"""The configuration opened, budgeted, rehearsed."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from mmcalib.census.accesses import Accesses
from mmcalib.checks import limits, reserve
from mmcalib.checks.check import Check, OptionFacts, line
from mmcalib.checks.limits import LIMIT
from mmcalib.checks.reserve import BATCH_HOLDS_ITEM, CONFIGURATION_ACCEPTED
from mmcalib.decision.explore import BudgetSource
from mmcalib.derive.costs import CostTable
from mmcalib.derive.demand import Headroom, WorstStep
from mmcalib.derive.limits import Adequacy, Count
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import DEFAULT, Setting
from mmcalib.domain.memory import Budget, Rehearsed
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import LISTS_MODELS, context_of, open_model, refusal, takes_no_media
from mmcalib.errors import EngineDied, VllmMissing, VllmRefused
from mmcalib.memory.checks import (
    Unrehearsed,
    memory_checks,
    not_rehearsed,
    predicted_shortfall,
    reserved_check,
)
from mmcalib.memory.rehearse import MemoryPrediction, Predicted, Rehearsals, on_gpu
from mmcalib.memory.worst_steps import (
    Cured,
    configurations,
    cured,
    encoder_steps,
    views_check,
    with_less_kv_cache,
)
from mmcalib.models.checkpoint import vocab_size
from mmcalib.models.cut import read_config
from mmcalib.models.resolve import ResolvedModel, cache_dir, resolve
from mmcalib.progress import Progress
from mmcalib.proof.start import Started
from mmcalib.text import GIB, gib
from mmcalib.workflows.validate.config import ReadableConfig, ValidateSession

_CHANGE = "change the setting that it names"


@dataclass(frozen=True, slots=True)
class Subject:
    """`engine_args` as judged, without the model; `plain` is the budget without size hints, both
    with their dummies. `table` has the costs of the items that it is tried with.
    """

    resolved: ResolvedModel
    opened: ModelInfo
    engine_args: dict[str, Any]
    counts: dict[Modality, Count]
    budget: Budget
    plain: Budget
    default_budget: Budget
    adequacy: Adequacy
    table: CostTable = field(default_factory=lambda: CostTable(DEFAULT, {}))

    @property
    def setting(self) -> Setting:
        return setting_of(self.engine_args)


def setting_of(engine_args: Mapping[str, Any]) -> Setting:
    """What of a configuration decides what items cost."""
    return Setting(
        mm_processor_kwargs=engine_args.get("mm_processor_kwargs") or {},
        media_io_kwargs=engine_args.get("media_io_kwargs") or {},
    )


def opened_as(
    host: EngineHost, resolved: ResolvedModel, engine_args: Mapping[str, Any], progress: Progress
) -> ModelInfo | Check:
    """The model as this configuration opens it, or vLLM's refusal as a finding.

    Raises ModelError for one that takes no media.
    """
    tokens = context_of(engine_args)
    text_only = takes_no_media(resolved, ": there is nothing to judge", LISTS_MODELS)
    try:
        opened = open_model(host, resolved, progress, context_tokens=tokens, text_only=text_only)
    except VllmRefused as error:
        return Check(CONFIGURATION_ACCEPTED, "fail", refusal(error), _CHANGE)
    if engine_args.get("disable_chunked_mm_input"):
        opened = replace(opened, chunks_mm_input=False)
    return opened


def accepts(asks: BudgetSource, args: Mapping[str, Any]) -> Budget | None:
    """vLLM's budget of these arguments, with its dummies; None where it refuses them."""
    found = _asked(asks, args, whole=False)
    return None if isinstance(found, str) else found


def takes_context(asks: BudgetSource, args: Mapping[str, Any], tokens: int) -> bool:
    """Whether the model takes a context of so many tokens."""
    return accepts(asks, {**args, "max_model_len": tokens}) is not None


def budgeted(
    asks: BudgetSource, resolved: ResolvedModel, engine_args: Mapping[str, Any], progress: Progress
) -> tuple[Subject | None, list[Check]]:
    """vLLM's budgets under the configuration. Where vLLM refuses it for a batch that is smaller
    than an item, the rest is judged with a batch that is not.
    """
    args, checks = dict(engine_args), list[Check]()
    whole = not asks.opened.chunks_mm_input
    with progress.step("computing the encoder budget"):
        budget = _asked(asks, args, whole=whole)
        if isinstance(budget, str):
            enough = _roomy(asks, args) if whole else None
            if enough is not None:
                # Some platforms forbid chunks where nobody asked for that.
                where = "" if args.get("disable_chunked_mm_input") else " on a GPU"
                remedy = f"{line('max_num_batched_tokens', enough)}, or more"
                detail = f"vLLM does not start{where}: {budget}"
                checks.append(Check(BATCH_HOLDS_ITEM, "fail", detail, remedy))
                args["max_num_batched_tokens"] = enough
                budget = _asked(asks, args, whole=whole)
        plain_args = limits.unhinted(args)
        plain = budget if plain_args == args else _asked(asks, plain_args, whole=whole)
        default, _ = asks.default()
    if isinstance(budget, str) or isinstance(plain, str):
        words = budget if isinstance(budget, str) else str(plain)
        return None, [
            *checks,
            Check(CONFIGURATION_ACCEPTED, "fail", words, _CHANGE),
        ]
    args = limits.as_read(args)
    counts = limits.counts(args, asks.opened)
    adequacy = reserve.reserved(args, budget, counts)
    return Subject(resolved, asks.opened, args, counts, budget, plain, default, adequacy), checks


def _asked(asks: BudgetSource, args: Mapping[str, Any], *, whole: bool) -> Budget | str:
    """The budget with its dummies, or vLLM's refusal; as a GPU server would have it, which forces
    what `whole` says.
    """
    forced = {"disable_chunked_mm_input": True} if whole else {}
    try:
        return asks.of({**args, **forced}, build_dummy=True)
    except VllmRefused as error:
        return refusal(error)


def _roomy(asks: BudgetSource, args: Mapping[str, Any]) -> int | None:
    """The least max_num_batched_tokens that holds an item, None where that is not what is wrong."""
    try:
        budget = asks.roomy(args)
    except VllmRefused:
        return None
    return max(budget.max_tokens_per_item.values(), default=0) or None


def asking(host: EngineHost, opened: ModelInfo, resolved: ResolvedModel) -> BudgetSource:
    return BudgetSource(host, opened, resolved.path, Policy())


# Less than this is 0.00 GiB.
_SHOWN_BYTES: Final = round(0.005 * GIB)


@dataclass(frozen=True, slots=True)
class ServedMemory:
    """What was rehearsed of a configuration, and what rehearses more of it."""

    prediction: MemoryPrediction
    predicted: Predicted
    progress: Progress

    @property
    def config(self) -> Rehearsed | None:
        return self.predicted.calibrated

    def knowing(self, **found: Any) -> ServedMemory:
        """The same with these figures too."""
        failure = self.prediction.failure
        return replace(self, predicted=replace(self.predicted, **found, failure=failure))


def begun(
    prediction: MemoryPrediction, engine_args: Mapping[str, Any], progress: Progress
) -> ServedMemory:
    """The configuration rehearsed, and vLLM's defaults at the same context."""
    kept = {k: v for k, v in engine_args.items() if k == "max_model_len"}
    with progress.step(f"rehearsing on {prediction.gpu.name}"):
        config, default = prediction.every([engine_args, kept])
    predicted = Predicted(prediction.gpu, default, config, failure=prediction.failure)
    return ServedMemory(prediction, predicted, progress)


def with_worst_steps(memory: ServedMemory, subject: Subject) -> ServedMemory:
    """With the worst step of each modality."""
    every = list(configurations(subject))
    with memory.progress.step(f"rehearsing the worst steps on {memory.predicted.gpu.name}"):
        found = memory.prediction.every([args for _, args in every])
    steps = {m: step for (m, _), step in zip(every, found, strict=True) if step is not None}
    return memory.knowing(steps=steps)


def with_own_items(memory: ServedMemory, subject: Subject) -> ServedMemory:
    """With steps of the corpus' own items, where they take more than vLLM's dummies."""
    steps = encoder_steps(subject)
    if memory.config is None or not steps:
        return memory
    gpu = memory.predicted.gpu.name
    with memory.progress.step(f"rehearsing steps of the corpus' items on {gpu}"):
        found = memory.prediction.tried(subject.engine_args, steps)
    return memory.knowing(calibrated=found or memory.config)


def gain(memory: ServedMemory, subject: Subject) -> str:
    """What the KV cache gains if the modality that nobody limits and that sets the budget is not
    served.
    """
    worst, args = subject.budget.profiled_modality, subject.engine_args
    written = args.get(LIMIT) or {}
    if worst is None or worst in written or memory.config is None:
        return ""
    less = memory.prediction.tried({**args, LIMIT: {**written, worst: 0}})
    if less is None:
        return ""
    now, then = gib(memory.config.kv_cache_bytes), gib(less.kv_cache_bytes)
    return f" and a KV cache on {memory.predicted.gpu.name} of {then} instead of {now}"


def unrehearsed(memory: ServedMemory, config: str) -> Unrehearsed:
    """Why R4 is not known in bytes, of the file `config`."""
    command = shlex.join(["mmcalib", "rehearse", "--config", config])
    return not_rehearsed(memory.predicted, command)


def room(memory: ServedMemory, subject: Subject) -> Headroom | None:
    """The costliest step beside what is reserved, on the whole GPU; None where it is not known."""
    found = predicted_shortfall(memory.predicted, subject)
    config = memory.config
    if config is None or found is None:
        return None
    return Headroom(
        config.total_bytes, config.requested_bytes, found.worst.nbytes, found.reserved_bytes
    )


def checks(
    memory: ServedMemory,
    subject: Subject,
    started: Started | None,
    config: str,
    accesses: Accesses,
) -> Iterator[Check]:
    """R4 in bytes where it could be rehearsed, what cached items keep beyond it, and whether the
    engine starts on that GPU.
    """
    predicted = memory.predicted
    reserved = reserved_check(predicted, subject, allow_under_reserve=False)
    if reserved is not None:
        fails = reserved.status == "fail"
        yield replace(reserved, remedy=_remedy(memory, subject)) if fails else reserved
    kept = views_check(predicted, subject, accesses)
    if kept is not None:
        yield kept
    for check in memory_checks(predicted, started, subject.resolved.path):
        fails = check.status == "fail"
        yield replace(check, remedy=plan_command(memory, config)) if fails else check


def plan_command(memory: ServedMemory, config: str) -> str:
    """What finds other settings for the file `config`."""
    return f"{shlex.join(['mmcalib', 'plan', '--config', config])} {memory.predicted.gpu.flags}"


def _remedy(memory: ServedMemory, subject: Subject) -> str:
    """Settings that were rehearsed, where any does; else room beside what is reserved."""
    found = predicted_shortfall(memory.predicted, subject)
    before, every = memory.predicted.calibrated, memory.prediction.every
    if found is None or before is None:
        return _leave_room(memory, subject)
    with memory.progress.step(f"rehearsing what would do on {memory.predicted.gpu.name}"):
        # What fails in tokens has cures of its own, that shrink the item.
        cures = list(cured(found, subject, every)) if subject.adequacy.passes else []
        less = None if cures else with_less_kv_cache(found, before, subject, every)
    cures.sort(key=lambda cure: -cure.rehearsed.kv_cache_bytes)
    return "\n".join(_lines(cure, before) for cure in cures) or _leave_room(memory, subject, less)


def _lines(cure: Cured, before: Rehearsed) -> str:
    lines = " and ".join(line(name, value) for name, value in cure.engine.values.items())
    return f"{lines}  # {kv_cache_words(before, cure.rehearsed)}"


def kv_cache_words(before: Rehearsed, after: Rehearsed) -> str:
    """What a remedy does to the KV cache."""
    if after.kv_cache_tokens is None:
        return f"would not start: KV cache {gib(after.kv_cache_bytes)}"
    lost = before.kv_cache_bytes - after.kv_cache_bytes
    if abs(lost) < _SHOWN_BYTES:
        return "costs no KV cache"
    return f"costs {gib(lost)} of KV cache" if lost > 0 else f"brings {gib(-lost)} of KV cache"


def _leave_room(memory: ServedMemory, subject: Subject, less: Cured | None = None) -> str:
    """What helps where the profile reserves its own modality in full, and another one's step takes
    more: `less` KV cache, or where that does not, less of the GPU.
    """
    args = subject.engine_args
    found, left = predicted_shortfall(memory.predicted, subject), room(memory, subject)
    before = memory.config
    if found is None or left is None or before is None:
        return ""
    remedies = []
    worst = found.worst.modality if isinstance(found.worst, WorstStep) else None
    if worst is not None and worst != subject.budget.profiled_modality:
        others = {m: count for m, count in (args.get(LIMIT) or {}).items() if m != worst}
        remedies.append(f"{line(LIMIT, {**others, worst: 0})}  # where no {worst} is served")
    lower = line("gpu_memory_utilization", left.reserving_utilization)
    lost = gib(left.requested_bytes - round(left.reserving_utilization * left.total_bytes))
    unreserved = f"{lower}  # costs {lost} of KV cache; leaves the room without reserving it"
    remedies.append(_lines(less, before) if less is not None else unreserved)
    return "\n".join(remedies)


def option_facts(
    subject: Subject, memory: ServedMemory | None, served: Mapping[str, Any]
) -> OptionFacts:
    """What the checks of options are computed from; `served` are all arguments of `vllm serve`."""
    known = OptionFacts(served, vocab_size(read_config(Path(subject.resolved.path))))
    config = memory.config if memory else None
    if memory is None or config is None:
        return known
    steps = {m: _encoder_peak(step) for m, step in memory.predicted.steps.items()}
    return replace(
        known,
        encoder_peak_bytes=_encoder_peak(config),
        encoder_tokens=config.encoder_tokens,
        step_bytes={m: peak for m, peak in steps.items() if peak is not None},
        encoder_cache_bytes=config.encoder_cache_bytes,
        activation_peak_bytes=config.activation_peak_bytes,
        runner=config.runner,
    )


def _encoder_peak(found: Rehearsed) -> int | None:
    return next((phase.peak_bytes for phase in found.phases if phase.name == "encoder"), None)


@dataclass(frozen=True, slots=True)
class OpenedConfig:
    """`asks` asks vLLM for the budget of other arguments."""

    resolved: ResolvedModel
    subject: Subject
    asks: BudgetSource
    memory: ServedMemory | None
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class RefusedConfig:
    """vLLM's refusal, which ends the validation."""

    resolved: ResolvedModel
    checks: tuple[Check, ...]


def find_model(session: ValidateSession, config: ReadableConfig) -> ResolvedModel:
    """Raises ModelError where it is not there."""
    with session.progress.step("finding the model"):
        resolved = resolve(config.model, cache_dir=cache_dir())
    for note in resolved.notes[:1]:
        session.progress.note(note)
    return resolved


@contextlib.contextmanager
def memory_of(
    session: ValidateSession, config: ReadableConfig, resolved: ResolvedModel
) -> Iterator[ServedMemory | None]:
    """The configuration rehearsed on the job's GPU, None where none is named."""
    gpu, progress = session.job.gpu, session.progress
    if gpu is None:
        yield None
        return
    base, fatal = {"model": resolved.path}, (EngineDied, VllmMissing)
    with (
        Rehearsals(gpu, on_said=progress.note, on_log=progress.log) as rehearsals,
        MemoryPrediction(gpu, rehearsals, base, fatal) as prediction,
    ):
        yield begun(prediction, config.engine_args, progress)


def open_config(
    session: ValidateSession,
    config: ReadableConfig,
    resolved: ResolvedModel,
    memory: ServedMemory | None,
) -> OpenedConfig | RefusedConfig:
    """Raises ModelError for a model that takes no media."""
    opened = opened_as(session.host, resolved, config.engine_args, session.progress)
    if isinstance(opened, Check):
        return RefusedConfig(resolved, (opened,))
    opened = on_gpu(opened, memory.config if memory else None)
    asks = asking(session.host, opened, resolved)
    subject, checks = budgeted(asks, resolved, config.engine_args, session.progress)
    if subject is None:
        return RefusedConfig(resolved, tuple(checks))
    return OpenedConfig(resolved, subject, asks, memory, tuple(checks))
