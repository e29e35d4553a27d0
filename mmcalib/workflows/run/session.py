"""Processes, sources and flags of a calibration."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmcalib.admission.calibration import Calibration
from mmcalib.configs import opening
from mmcalib.configs.commands import argument_of
from mmcalib.configs.read import WrittenConfiguration, read_configuration
from mmcalib.domain.items import Skipped
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.engine.host import CachingHost, EngineHost
from mmcalib.errors import UsageError
from mmcalib.files import Scratch
from mmcalib.limits.policy import FIT, Policy
from mmcalib.limits.values import CACHE, LIMIT, limit_options, normalize_limits
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.options.run import (
    DERIVED_ARGUMENTS,
    KEPT_ARGUMENTS,
    PROBE,
    ProbeOptions,
    RunOptions,
    build_policy,
    reject_derived_flags,
)
from mmcalib.prediction.predict import reject_too_small
from mmcalib.prediction.rehearse import MemoryPrediction, Rehearsals
from mmcalib.processes import Closing
from mmcalib.progress import Progress
from mmcalib.proof.prove import Proof
from mmcalib.text import flag
from mmcalib.workflows.corpus import LoadedCorpus


@dataclass(frozen=True, slots=True)
class Job:
    """The inputs of one calibration. Without a `gpu` mmcalib predicts no memory. `config` is the
    user's present configuration. `engine_args` are the server's further arguments by vLLM's names,
    but for those that a calibration derives or has options for.
    """

    model: str
    options: RunOptions
    policy: Policy
    gpu: Gpu | None
    config: WrittenConfiguration
    probe: ProbeOptions = PROBE
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        options: RunOptions,
        *,
        gpu: Gpu | None,
        policy: Policy | None = None,
        probe: ProbeOptions = PROBE,
        flags: Sequence[str] = (),
        engine_args: Mapping[str, Any] | None = None,
    ) -> Job:
        """Make the job of these options. Raises UsageError for a bad one, or without a model."""
        config = read_configuration(options.config, flags, options.model)
        if config.model_name is None:
            raise config.no_model_error()
        policy = policy or build_policy(options)
        reject_derived_flags(engine_args or {}, pinned=options.pin_kv_cache)
        if policy.concurrency is not None and gpu is None:
            raise UsageError("--concurrency needs --gpu", hint="--gpu L4")
        if options.pin_kv_cache and gpu is None:
            raise UsageError("--pin-kv-cache needs --gpu", hint="--gpu L4")
        return cls(config.model_name, options, policy, gpu, config, probe, engine_args or {})

    def with_fitting_context(self) -> Job:
        """Return the job with the shortest context for its media, unless somebody set one."""
        named = map(argument_of, (*self.config.settings, *self.config.every_flag))
        if self.policy.max_model_len or "max_model_len" in named:
            return self
        return replace(self, policy=replace(self.policy, max_model_len=FIT))


@dataclass(slots=True)
class RunOutcome:
    """The calibration after each step of a run, and all skipped items."""

    calibration: Calibration | None = None
    skipped: list[Skipped] = field(default_factory=list)
    on_change: Callable[[RunOutcome], None] = lambda outcome: None

    def update(self, calibration: Calibration | None) -> None:
        self.calibration = calibration
        self.on_change(self)


@dataclass(frozen=True, slots=True)
class GivenConfiguration:
    """The user's configuration: `engine_args` without the model and defaults, `values` with all.
    Without requests mmcalib derives neither item counts nor a processor cache.
    """

    written: WrittenConfiguration
    engine_args: Mapping[str, Any]
    values: Mapping[str, Any]
    has_requests: bool = True

    @property
    def kept_args(self) -> dict[str, Any]:
        """Arguments that mmcalib neither derives nor has an option for."""
        decided = DERIVED_ARGUMENTS if self.has_requests else DERIVED_ARGUMENTS - {CACHE}
        return {n: value for n, value in self.engine_args.items() if n not in decided}

    @property
    def derived_names(self) -> list[str]:
        """Names of arguments that mmcalib derives anew."""
        return [n for n in self.engine_args if n not in self.kept_args and n not in KEPT_ARGUMENTS]

    def fill_policy(self, policy: Policy) -> Policy:
        """Return the policy; this configuration fills its unset options."""
        counts: dict[Modality, int] = {}
        if not self.has_requests:
            # The corpus may still hold a modality that is off.
            limits = self.engine_args.get(LIMIT) or {}
            every = {m: limit_options(limits, m).get("count") for m in MODALITIES}
            counts = {modality: count for modality, count in every.items() if count}
        options = {
            name: self.engine_args[name]
            for name in KEPT_ARGUMENTS
            if name in self.engine_args and not getattr(policy, name)
        }
        # -1 leaves the context to vLLM.
        if opening.configured_context(self.engine_args) is None:
            options.pop("max_model_len", None)
        return replace(policy, **options, count={**counts, **policy.count})


def read_your_config(
    written: WrittenConfiguration,
    host: EngineHost,
    progress: Progress,
    *,
    pinned: bool = False,
    counted: bool = True,
) -> GivenConfiguration | None:
    """Let vLLM parse the user's configuration, if any. Raises UsageError if vLLM rejects it."""
    if written.source is None and not written.every_flag:
        return None
    with progress.step("reading your configuration"):
        config = opening.parse_configuration(host, written)
    if config.server:
        names = ", ".join(map(flag, config.server))
        progress.note(f"engine.yaml omits options of vLLM's API server: {names}")
    args = {name: value for name, value in config.engine_args.items() if name != "model"}
    yours = GivenConfiguration(written, normalize_limits(args), config.values, counted)
    # vLLM has parsed all spellings, such as -cc.
    reject_derived_flags({n: v for n, v in yours.kept_args.items() if n != CACHE}, pinned=pinned)
    if yours.derived_names:
        names = ", ".join(map(flag, yours.derived_names))
        progress.note(f"mmcalib derives these and compares them with yours: {names}")
    return yours


@dataclass(frozen=True, slots=True)
class Session:
    """A job's processes; `server` serves requests, in the process of `prediction` or another one.
    `given` are the user's arguments. `fit` fails if no limits fit the GPU.
    """

    job: Job
    host: EngineHost
    prediction: MemoryPrediction | None
    scratch: Path
    progress: Progress
    given: Mapping[str, Any] = field(default_factory=dict)
    server: MemoryPrediction | None = None
    yours: GivenConfiguration | None = None
    fit: Future[None] | None = None

    @property
    def default_args(self) -> dict[str, Any]:
        """The user's engine arguments, which the default configuration has too."""
        own = self.job.policy.given_values
        own.pop("max_num_batched_tokens", None)
        if self.job.policy.context_tokens is None:
            own.pop("max_model_len", None)
        return {**own, **self.given}


@dataclass(slots=True)
class Shared(Closing):
    """Shared by jobs over one corpus: its census, proofs, and the process with an open model."""

    corpus: LoadedCorpus | None = None
    proofs: dict[str, Proof] = field(default_factory=dict)
    _host: CachingHost | None = field(init=False, default=None)
    _model: str = field(init=False, default="")
    _opening: Future[ModelInfo] | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="opening")

    def host_of(self, model_path: str, progress: Progress) -> EngineHost:
        """Return the process for this model; start it again if a proof has ended it."""
        if self._model != model_path:
            self.end_host()
        if self._host is None:
            self._model = model_path
            self._host = CachingHost(on_note=progress.note, on_log=progress.log)
        elif self._host.is_closed:
            self._host.revive()
        return self._host

    def open(self, work: Callable[[], ModelInfo]) -> Future[ModelInfo]:
        """Let `work` open the model in that process, once, in the background."""
        if self._opening is None:
            self._opening = self._thread.submit(work)
        return self._opening

    def stop_host(self) -> None:
        """End the process and its engine; the next job starts it again."""
        if self._host is not None:
            self._host.close()

    def end_host(self) -> None:
        """End the process: another model follows, or it may still be computing an answer."""
        self.stop_host()
        self._host = self._opening = None

    def __exit__(self, *raised: object) -> None:
        if self._host is not None:
            self._host.__exit__(*raised)
        self.close()

    def close(self) -> None:
        self.end_host()
        self._thread.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def open_session(
    job: Job, resolved: ResolvedModel, progress: Progress, shared: Shared
) -> Iterator[Session]:
    """Begin a session; with a GPU, vLLM's defaults are rehearsed in the background."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(Scratch()).path
        rehearsals = prediction = server = None
        if job.gpu is not None:
            rehearsals = stack.enter_context(Rehearsals(job.gpu, on_log=progress.log))
            base = {"model": resolved.path}
            prediction = MemoryPrediction(job.gpu, rehearsals, base, progress=progress)
            server = stack.enter_context(prediction)
            # A second process is worth it if no engine starts and there is more than one core.
            if job.options.validate in ("none", "budget") and len(os.sched_getaffinity(0)) > 1:
                own = stack.enter_context(Rehearsals(job.gpu, on_log=progress.log))
                server = stack.enter_context(MemoryPrediction(job.gpu, own))
        host = shared.host_of(resolved.path, progress)
        if job.engine_args:
            opening.reject_unknown_arguments(job.engine_args, opening.list_options(host).engine)
        pinned, counted = job.options.pin_kv_cache, bool(job.options.requests)
        parser = rehearsals or host
        yours = read_your_config(job.config, parser, progress, pinned=pinned, counted=counted)
        given = {**job.engine_args, **(yours.kept_args if yours else {})}
        if yours is not None:
            job = replace(job, policy=yours.fill_policy(job.policy))
            # A configuration without limits equals the default, which the report compares anyway.
            yours = yours if yours.derived_names or yours.written.source else None
        session = Session(job, host, prediction, scratch, progress, given, server, yours)
        if prediction is not None:
            policy, default = job.policy, session.default_args
            least = {**default, **policy.given_values}
            if policy.context_tokens is None:
                least["max_model_len"] = max(1, policy.text_reserve_tokens)
            prediction.start(default)
            fitting = partial(reject_too_small, prediction, default, least, resolved.id)
            session = replace(session, fit=prediction.run_after(fitting))
            if yours is not None:
                prediction.start(yours.engine_args)
        yield session
