"""Processes, sources and flags of a calibration."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mmcalib.checks.catalogue import NOT_STARTED_WITH
from mmcalib.checks.check import Check
from mmcalib.checks.limits import LIMIT, as_read
from mmcalib.checks.limits import counts as count_limits
from mmcalib.checks.limits import options as limit_options
from mmcalib.decision.explore import BudgetSource
from mmcalib.derive.limits import adequacy
from mmcalib.derive.policy import FIT, Policy
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.engine.config_forms import WrittenConfiguration, trusted
from mmcalib.engine.helpers import OnceHost
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ListServeOptions, ServeConfig
from mmcalib.engine.vllm_config import context_of, here, refusal, refuse_unknown, refused_flags
from mmcalib.errors import MmcalibError, UsageError, VllmRefused
from mmcalib.files import Scratch
from mmcalib.memory.figures import encoder_budget
from mmcalib.memory.predict import refuse_too_small
from mmcalib.memory.rehearse import EngineArgs, MemoryPrediction, Rehearsals
from mmcalib.models.catalogue import find
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.options.validation import DECIDED, TAKEN, refuse_own
from mmcalib.processes import Closing
from mmcalib.progress import Progress
from mmcalib.proof.prove import Proof
from mmcalib.results.memory import EncoderBudget
from mmcalib.text import flag, one_line
from mmcalib.workflows.corpus import ReadCorpus, read
from mmcalib.workflows.run.job import Job
from mmcalib.workflows.traffic.background import ServingProcess


def read_corpus(job: Job, progress: Progress, *, sound: bool = False) -> ReadCorpus:
    """Read the job's corpus, `sound` as in `examine`. Raises CorpusError and UsageError."""
    root, cache, how = job.allowed_root, job.cache, job.probe
    sources = job.data, job.requests
    return read(*sources, allowed_root=root, cache=cache, progress=progress, how=how, sound=sound)


_CACHE: Final = "mm_processor_cache_gb"
# vLLM's error (0.32) for a checkpoint that is not quantised with the given method.
_NOT_QUANTISED: Final = re.compile(r"Cannot find the config file for (\w+)")


@dataclass(frozen=True, slots=True)
class YourConfiguration:
    """The user's present configuration. `engine_args` differ from vLLM's defaults and omit the
    model; `values` are all that vLLM parses. `counted`: there are requests; without them mmcalib
    derives neither item counts nor a processor cache.
    """

    written: WrittenConfiguration
    engine_args: Mapping[str, Any]
    values: Mapping[str, Any]
    counted: bool = True

    @property
    def given(self) -> dict[str, Any]:
        """Arguments that mmcalib neither derives nor has an option for."""
        decided = DECIDED if self.counted else DECIDED - {_CACHE}
        return {n: value for n, value in self.engine_args.items() if n not in decided}

    @property
    def compared(self) -> list[str]:
        """Names of arguments that mmcalib derives anew."""
        return [n for n in self.engine_args if n not in self.given and n not in TAKEN]

    def taken(self, policy: Policy) -> Policy:
        """Return the policy; this configuration fills its unset options."""
        counts: dict[Modality, int] = {}
        if not self.counted:
            # The corpus may still hold a modality that is off.
            limits = self.engine_args.get(LIMIT) or {}
            every = {m: limit_options(limits, m).get("count") for m in MODALITIES}
            counts = {modality: count for modality, count in every.items() if count}
        options = {
            name: self.engine_args[name]
            for name in TAKEN
            if name in self.engine_args and not getattr(policy, name)
        }
        # -1 leaves the context to vLLM.
        if context_of(self.engine_args) is None:
            options.pop("max_model_len", None)
        return replace(policy, **options, count={**counts, **policy.count})


def default_args(policy: Policy, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's engine arguments, which the default configuration has too."""
    own = {
        "max_model_len": policy.context_tokens,
        "max_num_seqs": policy.max_num_seqs,
        "gpu_memory_utilization": policy.gpu_memory_utilization,
    }
    return {**{name: value for name, value in own.items() if value is not None}, **given}


def read_yours(
    written: WrittenConfiguration,
    parse: Callable[[WrittenConfiguration], ServeConfig],
    progress: Progress,
    *,
    pinned: bool = False,
    counted: bool = True,
) -> YourConfiguration | None:
    """Let vLLM parse the user's present configuration, if there is one. Raises UsageError if vLLM
    rejects it, or if it is `pinned` and sets what pinning the KV cache writes.
    """
    flags = (*written.written, *written.flags)
    if written.source is None and not flags:
        return None
    try:
        with progress.step("reading your configuration"):
            config = parse(written)
    except VllmRefused as error:
        why = refusal(error)
        if written.config is not None:
            raise UsageError(
                f"vLLM rejects {written.config}: {one_line(why)}",
                hint=shlex.join(["mmcalib", "validate", str(written.config)]),
            ) from error
        raise refused_flags(why, flags) or UsageError(
            f"vLLM rejects these flags: {one_line(why)}",
            hint="vllm serve --help=all lists them",
        ) from error
    if config.server:
        names = ", ".join(map(flag, config.server))
        progress.note(f"engine.yaml omits options of vLLM's API server: {names}")
    args = {name: value for name, value in config.engine_args.items() if name != "model"}
    yours = YourConfiguration(written, as_read(args), config.values, counted)
    # vLLM has parsed all spellings, such as -cc.
    refuse_own({n: v for n, v in yours.given.items() if n != _CACHE}, pinned=pinned)
    if yours.compared:
        names = ", ".join(map(flag, yours.compared))
        progress.note(f"mmcalib derives these and compares them with yours: {names}")
    return yours


def budget_yours(
    yours: YourConfiguration | None, budgets: BudgetSource
) -> tuple[EncoderBudget | None, str]:
    """Return vLLM's budget under the user's configuration, and vLLM's words if it rejects it."""
    if yours is None:
        return None, ""
    try:
        budget = budgets.of(yours.engine_args, build_dummy=True)
    except VllmRefused as error:
        return None, refusal(error)
    counts = {m: c.value for m, c in count_limits(yours.engine_args, budgets.opened).items()}
    return encoder_budget(budget, adequacy(budget, counts)), ""


def refuse_unusable(
    prediction: MemoryPrediction,
    default: EngineArgs,
    given: Mapping[str, Any],
    flags: Sequence[str],
    resolved: ResolvedModel,
) -> None:
    """Raise UsageError if vLLM rejects the model with these arguments but not without them."""
    if not given:
        return
    try:
        prediction.rehearse(default)
        return
    except VllmRefused as error:
        refused = error
    except MmcalibError:
        return
    try:
        prediction.rehearse({k: v for k, v in default.items() if k not in given})
    except MmcalibError:
        return
    arguments = shlex.join(flags) or ", ".join(given)
    hint = "change the flag that vLLM names, or leave it out"
    if not_quantised := _NOT_QUANTISED.search(refused.reason):
        sibling = f"{resolved.id}-{not_quantised[1].upper()}"
        other = f"--model {sibling}" if find(sibling) else "--model with a checkpoint that is"
        hint = f"this checkpoint is not quantized: {other}, or -- --quantization fp8"
    words = f"vLLM rejects {resolved.id} with {arguments}: {one_line(refusal(refused))}"
    raise UsageError(words, hint=hint) from refused


def given_checks(given: Mapping[str, Any], device: str, gpu: Gpu | None) -> Iterator[Check]:
    """Yield a check of the arguments with which no engine can start on this machine."""
    usable = here(given, device)
    unusable = [name for name in given if name not in usable]
    if not unusable:
        return
    name = NOT_STARTED_WITH.of(", ".join(map(flag, unusable)))
    why = "they need a GPU and change neither tokens nor the encoder budget"
    if gpu is None:
        detail = f"{why}; their memory is unknown"
        yield Check(name, "warn", detail, "--gpu NAME rehearses them")
    else:
        yield Check(name, "skip", f"{why}; memory on {gpu.name} is rehearsed")


@dataclass(frozen=True, slots=True)
class Session:
    """A job's processes and arguments. `given` are the user's engine arguments, from `yours` if
    there is a file. `fitting` fails if no configuration starts on the GPU.
    """

    job: Job
    host: EngineHost
    prediction: MemoryPrediction | None
    scratch: Path
    progress: Progress
    given: Mapping[str, Any] = field(default_factory=dict)
    serving: ServingProcess | None = None
    yours: YourConfiguration | None = None
    fitting: Future[None] | None = None

    @property
    def default_args(self) -> dict[str, Any]:
        return default_args(self.job.policy, self.given)


@dataclass(slots=True)
class Shared(Closing):
    """Shared by jobs over one corpus: its census, proofs, and the process with an open model."""

    corpus: ReadCorpus | None = None
    proofs: dict[str, Proof] = field(default_factory=dict)
    _host: OnceHost | None = field(init=False, default=None)
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
            self._host = OnceHost(on_said=progress.note, on_log=progress.log)
        elif self._host.ended:
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
        host, self._host, self._opening = self._host, None, None
        if host is not None:
            host.close()

    def __exit__(self, *raised: object) -> None:
        if self._host is not None:
            self._host.__exit__(*raised)
        self.close()

    def close(self) -> None:
        self.end_host()
        self._thread.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def session_of(
    job: Job, resolved: ResolvedModel, progress: Progress, shared: Shared
) -> Iterator[Session]:
    """Begin a session; with a GPU, vLLM's defaults are rehearsed in the background."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(Scratch()).path
        rehearsals = prediction = serving = None
        if job.gpu is not None:
            rehearsals = stack.enter_context(Rehearsals(job.gpu, on_log=progress.log))
            prediction = MemoryPrediction(job.gpu, rehearsals, {"model": resolved.path})
            stack.enter_context(prediction)
            serving = ServingProcess(rehearsals, prediction.after, apart=False)
            # A second process is worth it if no engine starts and there is more than one core.
            if job.validate in ("none", "budget") and len(os.sched_getaffinity(0)) > 1:
                own = stack.enter_context(Rehearsals(job.gpu, on_log=progress.log))
                thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="serving")
                stack.callback(thread.shutdown, wait=False, cancel_futures=True)
                serving = ServingProcess(own, thread.submit, apart=True)
        host = shared.host_of(resolved.path, progress)

        def parse(written: WrittenConfiguration) -> ServeConfig:
            """Parse on the named GPU, if any, because defaults depend on it."""
            if rehearsals is not None:
                return rehearsals.parsed(written)
            return trusted(host.ask(written.question, "reading vLLM's flags"), written.source)

        if job.engine_args:
            listed = host.ask(ListServeOptions(), "listing the arguments of vLLM")
            refuse_unknown(job.engine_args, listed.engine)
        counted = bool(job.requests)
        yours = read_yours(job.config, parse, progress, pinned=job.pin_kv_cache, counted=counted)
        given = {**job.engine_args, **(yours.given if yours else {})}
        if yours is not None:
            job = replace(job, policy=yours.taken(job.policy))
            # A configuration without limits equals the default, which the report compares anyway.
            yours = yours if yours.compared or yours.written.source else None
        session = Session(job, host, prediction, scratch, progress, given, serving, yours)
        if prediction is not None:
            # The defaults with the smallest context that the policy may choose.
            least, policy = session.default_args, job.policy
            for name in ("max_num_batched_tokens", "max_num_seqs"):
                if (value := getattr(policy, name)) is not None:
                    least[name] = value
            if policy.max_model_len == FIT:
                least["max_model_len"] = max(1, policy.text_reserve_tokens)
            fitting = partial(refuse_too_small, prediction, least, resolved.id)
            session = replace(session, fitting=prediction.after(fitting))
            prediction.begin(session.default_args)
            if yours is not None:
                prediction.begin(yours.engine_args)
        yield session
