"""Open a configuration in vLLM, get its budgets and rehearse its memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mmcalib.census.accesses import Accesses
from mmcalib.checks import reserve
from mmcalib.checks.check import Check, yaml_line, yaml_lines
from mmcalib.checks.facts import JudgedConfig
from mmcalib.checks.file import (
    WrittenFile,
    check_file,
    rejected_configuration_check,
    small_batch_check,
)
from mmcalib.checks.memory import memory_checks
from mmcalib.configs import opening
from mmcalib.configs.read import WrittenConfiguration
from mmcalib.decision.explore import BudgetSource
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, RehearsedMemory
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ServeConfig
from mmcalib.errors import EngineDied, VllmMissing, VllmRefused
from mmcalib.limits import values
from mmcalib.limits.demand import Shortfall, WorstStep
from mmcalib.limits.policy import Policy
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.options.run import ProofOptions
from mmcalib.prediction import worst_steps
from mmcalib.prediction.rehearse import MemoryPrediction, Predicted, Rehearsals, with_gpu_defaults
from mmcalib.progress import Progress
from mmcalib.proof.prove import Started
from mmcalib.remedies.memory import Remedy
from mmcalib.text import SHOWN_BYTES, gib
from mmcalib.workflows.corpus import LoadedCorpus


@dataclass(frozen=True, slots=True)
class ValidateJob:
    """A configuration as written, the media to serve, how to prove it, and the engine process,
    scratch folder and progress that all stages of a validation use.
    """

    written: WrittenConfiguration
    host: EngineHost
    scratch: Path
    progress: Progress
    data: Sequence[Path] = ()
    requests: Sequence[Path] = ()
    allowed_root: Path | None = None
    gpu: Gpu | None = None
    proof: ProofOptions = field(default_factory=ProofOptions)


def parse_config(
    host: EngineHost, configuration: WrittenConfiguration, scratch: Path
) -> tuple[ServeConfig | None, list[Check]]:
    """Parse as `vllm serve` does, else without keys at fault; None if vLLM cannot parse the rest.
    Raises UsageError for bad flags.
    """
    options, bad = opening.list_options(host).arguments, dict[str, str]()
    flags, repeated = configuration.every_flag, configuration.repeated_keys
    left_out = configuration.left_out
    written = WrittenFile(configuration.settings, repeated, flags, options, left_out)
    parsed, refused = _parse(host, configuration)
    if parsed is None:
        if flags_error := opening.rejected_flags_error(refused, flags, options):
            raise flags_error
        rest = {k: v for k, v in written.settings.items() if k not in written.unusable_keys()}
        usable, why = scratch / "usable.yaml", refused
        while parsed is None:
            key = written.key_at_fault(why)
            if key in rest:
                bad[key] = why
                del rest[key]
            usable.write_text(yaml.safe_dump(rest, sort_keys=False), encoding="utf-8")
            parsed, why = _parse(host, replace(configuration, config=usable))
            if written.key_at_fault(why) not in rest:
                break
    arrived = None if parsed is None else parsed.values
    return parsed, list(check_file(written, refused, arrived, bad))


def _parse(host: EngineHost, configuration: WrittenConfiguration) -> tuple[ServeConfig | None, str]:
    """Return vLLM's parsed configuration, or the words in which vLLM rejects it."""
    try:
        return opening.try_to_parse(host, configuration), ""
    except VllmRefused as refused:
        return None, "; try ".join(filter(None, (refused.reason, refused.hint)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMemory(Predicted):
    """A configuration's rehearsals, and the source of more of them."""

    prediction: MemoryPrediction

    def with_figures(self, **figures: Any) -> ConfigMemory:
        """Return a copy with these figures."""
        return replace(self, **figures, failure=self.prediction.failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedConfig(JudgedConfig):
    """A configuration under validation; `corpus` is the media, `file` its name in commands."""

    resolved: ResolvedModel
    budgets: BudgetSource
    default_budget: Budget
    progress: Progress
    memory: ConfigMemory | None = None
    corpus: LoadedCorpus | None = None
    written: WrittenConfiguration = field(default_factory=WrittenConfiguration)

    @property
    def opened(self) -> ModelInfo:
        return self.budgets.opened

    @property
    def setting(self) -> Setting:
        """The processor and loader options, which decide what items cost."""
        return Setting(
            mm_processor_kwargs=self.engine_args.get("mm_processor_kwargs") or {},
            media_io_kwargs=self.engine_args.get("media_io_kwargs") or {},
        )

    @property
    def shortfall(self) -> Shortfall | None:
        """The costliest step against the reserve, or None if it was not rehearsed."""
        memory = self.memory
        return worst_steps.find_shortfall(self, memory.calibrated, memory.steps) if memory else None

    def accepts(self, args: Mapping[str, Any]) -> Budget | None:
        """Return vLLM's budget of these arguments with its dummies, or None if it rejects them."""
        budget = _ask_budget(self.budgets, args, whole=False)
        return None if isinstance(budget, str) else budget

    def takes_context(self, tokens: int) -> bool:
        """Return whether vLLM accepts a context of `tokens`."""
        return self.accepts({**self.engine_args, "max_model_len": tokens}) is not None


def _ask_budget(asks: BudgetSource, args: Mapping[str, Any], *, whole: bool) -> Budget | str:
    """Return the budget with its dummies, or vLLM's refusal; `whole` forbids chunked items."""
    forced = {"disable_chunked_mm_input": True} if whole else {}
    try:
        return asks.budget_of({**args, **forced}, build_dummy=True)
    except VllmRefused as error:
        return error.reason


@contextlib.contextmanager
def rehearse_config(
    job: ValidateJob, engine_args: Mapping[str, Any], resolved: ResolvedModel
) -> Iterator[ConfigMemory | None]:
    """Rehearse the configuration and vLLM's defaults on the job's GPU; None without a GPU."""
    gpu, progress = job.gpu, job.progress
    if gpu is None:
        yield None
        return
    base, fatal = {"model": resolved.path}, (EngineDied, VllmMissing)
    with (
        Rehearsals(gpu, on_note=progress.note, on_log=progress.log) as rehearsals,
        MemoryPrediction(gpu, rehearsals, base, fatal) as prediction,
    ):
        default_args = {k: v for k, v in engine_args.items() if k == "max_model_len"}
        default_args |= opening.loading_args(engine_args)
        with progress.step(f"rehearsing on {gpu.name}"):
            config, default = prediction.rehearse_all([engine_args, default_args])
        yield ConfigMemory(gpu, default, config, failure=prediction.failure, prediction=prediction)


def open_config(
    job: ValidateJob,
    engine_args: Mapping[str, Any],
    resolved: ResolvedModel,
    memory: ConfigMemory | None,
) -> tuple[ValidatedConfig | None, list[Check]]:
    """Return the configuration (None if rejected) and failed checks. Raises ModelError."""
    context, loading = opening.configured_context(engine_args), opening.loading_args(engine_args)
    host, so = job.host, ": there is nothing to validate"
    try:
        opened = opening.open_model(
            host, resolved, job.progress, loading, context_tokens=context, so=so
        )
    except VllmRefused as error:
        return None, [rejected_configuration_check(error.reason, error.hint)]
    if engine_args.get("disable_chunked_mm_input"):
        opened = replace(opened, chunks_mm_input=False)
    opened = with_gpu_defaults(opened, memory.calibrated if memory else None)
    asks = BudgetSource(host, opened, resolved.path, Policy(), given=loading)
    with job.progress.step("computing the encoder budget"):
        args, budget, checks = _budget_with_room(asks, dict(engine_args))
        unhinted = {**args, values.LIMIT: values.plain_counts(args.get(values.LIMIT) or {})}
        plain = _ask_budget(asks, unhinted, whole=not opened.chunks_mm_input)
        default, _ = asks.default_budget()
    if isinstance(budget, str) or isinstance(plain, str):
        words = budget if isinstance(budget, str) else str(plain)
        return None, [*checks, rejected_configuration_check(words)]
    args = values.normalize_limits(args)
    counts = values.count_limits(args, opened)
    subject = ValidatedConfig(
        engine_args=args,
        counts=counts,
        budget=budget,
        plain=plain,
        adequacy=values.token_adequacy(args, budget, counts),
        resolved=resolved,
        budgets=asks,
        default_budget=default,
        progress=job.progress,
        memory=memory,
        written=job.written,
    )
    return subject, checks


def _budget_with_room(
    asks: BudgetSource, args: dict[str, Any]
) -> tuple[dict[str, Any], Budget | str, list[Check]]:
    """Return the arguments and their budget. A batch below one item fails a check and grows."""
    whole = not asks.opened.chunks_mm_input
    budget = _ask_budget(asks, args, whole=whole)
    if not isinstance(budget, str) or not whole:
        return args, budget, []
    try:
        enough = max(asks.budget_of_any_item(args).max_tokens_per_item.values(), default=0)
    except VllmRefused:
        enough = 0
    if not enough:
        return args, budget, []
    # Some platforms forbid chunks without the option.
    check = small_batch_check(budget, enough, on_gpu=not args.get("disable_chunked_mm_input"))
    args = {**args, "max_num_batched_tokens": enough}
    return args, _ask_budget(asks, args, whole=whole), [check]


def add_worst_steps(subject: ValidatedConfig) -> ValidatedConfig:
    """Return the subject with the worst step of each modality rehearsed."""
    if (memory := subject.memory) is None:
        return subject
    with subject.progress.step(f"rehearsing worst steps on {memory.gpu.name}"):
        steps = worst_steps.rehearse_worst_steps(subject, memory.prediction.rehearse_all)
    return replace(subject, memory=memory.with_figures(steps=steps))


def add_own_items(subject: ValidatedConfig) -> ValidatedConfig:
    """Rehearse steps of the corpus' own items if they take more than vLLM's dummies."""
    memory = subject.memory
    steps = worst_steps.encoder_steps(subject) if memory else ()
    if memory is None or memory.calibrated is None or not steps:
        return subject
    gpu = memory.gpu.name
    with subject.progress.step(f"rehearsing the corpus' items on {gpu}"):
        rehearsed = memory.prediction.rehearse_or_none(subject.engine_args, steps)
    memory = memory.with_figures(calibrated=rehearsed or memory.calibrated)
    return replace(subject, memory=memory)


def checks_in_bytes(
    memory: ConfigMemory, subject: ValidatedConfig, started: Started | None
) -> Iterator[Check]:
    """Check the reserve in bytes, the memory that cached items retain, and the engine's start."""
    after = memory.calibrated
    if reserved := reserve.reserved_bytes_check(subject.shortfall, after, subject):
        fails = reserved.status == "fail"
        yield replace(reserved, remedy=_remedy(memory, subject)) if fails else reserved
    accesses = subject.corpus.accesses if subject.corpus is not None else Accesses()
    if retention := worst_steps.check_retention(memory, subject, accesses):
        yield retention
    gpu, figures = memory.gpu.name, started.figures if started else None
    for check in memory_checks(gpu, memory.default, after, memory.failure, figures):
        fails = check.status == "fail" and after is not None
        yield replace(check, remedy=subject.written.command("plan", memory.gpu)) if fails else check


def _remedy(memory: ConfigMemory, subject: ValidatedConfig) -> str:
    """Return rehearsed settings that pass, after a limit of 0 for a modality that may not be
    served; `plan` for what does not start.
    """
    short, before, every = subject.shortfall, memory.calibrated, memory.prediction.rehearse_all
    if short is None or before is None:
        return ""
    remedies, found = list[str](), list[tuple[Remedy, RehearsedMemory]]()
    worst = short.worst.modality if isinstance(short.worst, WorstStep) else None
    if before.kv_cache_tokens is not None:
        if worst is not None and worst != subject.budget.profiled_modality:
            limited = {**(subject.engine_args.get(values.LIMIT) or {}), worst: 0}
            remedies.append(f"{yaml_line(values.LIMIT, limited)}  # if you serve no {worst}")
        # If the reserve fails in tokens, other remedies shrink the item.
        if subject.adequacy.passes:
            with subject.progress.step(f"rehearsing remedies on {memory.gpu.name}"):
                found += worst_steps.find_remedies(short, subject, every)
    for remedy, after in sorted(found, key=lambda one: -one[1].kv_cache_bytes):
        remedies.append(f"{yaml_lines(remedy.changes)}  # {describe_kv_cache(before, after)}")
    return "\n".join(remedies) or subject.written.command("plan", memory.gpu)


def describe_kv_cache(before: RehearsedMemory, after: RehearsedMemory) -> str:
    """Say what a remedy does to the KV cache."""
    if after.kv_cache_tokens is None:
        return f"would not start: KV cache {gib(after.kv_cache_bytes)}"
    lost = before.kv_cache_bytes - after.kv_cache_bytes
    if abs(lost) < SHOWN_BYTES:
        return "costs no KV cache"
    return f"costs {gib(lost)} of KV cache" if lost > 0 else f"adds {gib(-lost)} of KV cache"
