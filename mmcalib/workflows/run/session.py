"""Processes, sources and flags of a run."""

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
from mmcalib.checks.limits import LIMIT, as_read, options
from mmcalib.checks.limits import counts as count_limits
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
# vLLM (0.32) where a checkpoint is not quantised as it is told.
_NOT_QUANTISED: Final = re.compile(r"Cannot find the config file for (\w+)")


@dataclass(frozen=True, slots=True)
class YourConfiguration:
    """What the user serves with today. `engine_args` are those that differ from vLLM's defaults,
    without the model; `values` are all that vLLM reads. `counted`: requests say how items come
    together and again. Without them mmcalib derives neither counts nor a cache.
    """

    written: WrittenConfiguration
    engine_args: Mapping[str, Any]
    values: Mapping[str, Any]
    counted: bool = True

    @property
    def given(self) -> dict[str, Any]:
        """What mmcalib neither derives nor has an option for."""
        decided = DECIDED if self.counted else DECIDED - {_CACHE}
        return {n: value for n, value in self.engine_args.items() if n not in decided}

    @property
    def compared(self) -> list[str]:
        """What mmcalib derives, in place of this."""
        return [n for n in self.engine_args if n not in self.given and n not in TAKEN]

    def taken(self, policy: Policy) -> Policy:
        """The policy with what this configuration says of its options, where they say nothing."""
        counts: dict[Modality, int] = {}
        if not self.counted:
            # A modality that is off may still be in the corpus.
            limits = self.engine_args.get(LIMIT) or {}
            every = {modality: options(limits, modality).get("count") for modality in MODALITIES}
            counts = {modality: count for modality, count in every.items() if count}
        said = {
            name: self.engine_args[name]
            for name in TAKEN
            if name in self.engine_args and not getattr(policy, name)
        }
        # -1 leaves the context to vLLM.
        if context_of(self.engine_args) is None:
            said.pop("max_model_len", None)
        return replace(policy, **said, count={**counts, **policy.count})


def default_args(policy: Policy, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the user says of the engine, which the default configuration has too."""
    said = {
        "max_model_len": policy.context_tokens,
        "max_num_seqs": policy.max_num_seqs,
        "gpu_memory_utilization": policy.gpu_memory_utilization,
    }
    return {**{name: value for name, value in said.items() if value is not None}, **given}


def read_yours(
    written: WrittenConfiguration,
    parse: Callable[[WrittenConfiguration], ServeConfig],
    progress: Progress,
    *,
    pinned: bool = False,
    counted: bool = True,
) -> YourConfiguration | None:
    """What the user serves with, as vLLM reads it, if anything. Raises UsageError where vLLM
    refuses it, or it sets what pinning the KV cache writes where that is `pinned`.
    """
    flags = (*written.written, *written.flags)
    if written.source is None and not flags:
        return None
    try:
        with progress.step("reading your configuration"):
            said = parse(written)
    except VllmRefused as error:
        said_so = refusal(error)
        if written.config is not None:
            raise UsageError(
                f"vLLM refuses {written.config}: {one_line(said_so)}",
                hint=shlex.join(["mmcalib", "validate", str(written.config)]),
            ) from error
        raise refused_flags(said_so, flags) or UsageError(
            f"vLLM does not take these flags: {one_line(said_so)}",
            hint="vllm serve --help=all lists them",
        ) from error
    if said.server:
        named = ", ".join(map(flag, said.server))
        progress.note(f"engine.yaml leaves out what only vLLM's API server has: {named}")
    args = {name: value for name, value in said.engine_args.items() if name != "model"}
    yours = YourConfiguration(written, as_read(args), said.values, counted)
    # By any of their names, such as -cc.
    refuse_own({n: v for n, v in yours.given.items() if n != _CACHE}, pinned=pinned)
    if yours.compared:
        named = ", ".join(map(flag, yours.compared))
        progress.note(f"compared with, not kept: {named}")
    return yours


def budget_yours(
    yours: YourConfiguration | None, budgets: BudgetSource
) -> tuple[EncoderBudget | None, str]:
    """vLLM's budget under it, None where there is none; and why, where vLLM refuses it."""
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
    """Raises UsageError where vLLM refuses the model under these arguments, and not without."""
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
    said = shlex.join(flags) or ", ".join(given)
    hint = "change the flag that it names, or leave it out"
    if found := _NOT_QUANTISED.search(refused.reason):
        sibling = f"{resolved.id}-{found[1].upper()}"
        other = f"--model {sibling}" if find(sibling) else "--model with a checkpoint that is"
        hint = f"this checkpoint is not quantized: {other}, or -- --quantization fp8"
    words = f"vLLM refuses {resolved.id} with {said}: {one_line(refusal(refused))}"
    raise UsageError(words, hint=hint) from refused


def given_checks(given: Mapping[str, Any], device: str, gpu: Gpu | None) -> Iterator[Check]:
    """What no engine is started with here."""
    had = here(given, device)
    left = [name for name in given if name not in had]
    if not left:
        return
    name = NOT_STARTED_WITH.of(", ".join(map(flag, left)))
    why = "they need a GPU, and tokens and encoder budget do not depend on them"
    if gpu is None:
        detail = f"{why}; what memory they leave is not known"
        yield Check(name, "warn", detail, "--gpu NAME rehearses them")
    else:
        yield Check(name, "skip", f"{why}; memory on {gpu.name} is rehearsed")


@dataclass(frozen=True, slots=True)
class Session:
    """What a job works with on its GPU, where one is named; `given` are the user's engine
    arguments, of `yours` where that is a file. `fitting` fails where no configuration starts there.
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
    """What jobs over one corpus share: its census, proofs, and the process with an open model."""

    corpus: ReadCorpus | None = None
    proofs: dict[str, Proof] = field(default_factory=dict)
    _host: OnceHost | None = field(init=False, default=None)
    _model: str = field(init=False, default="")
    _opening: Future[ModelInfo] | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="opening")

    def host_of(self, model_path: str, progress: Progress) -> EngineHost:
        """The process for this model, begun again where a proof has ended it."""
        if self._model != model_path:
            self.end_host()
        if self._host is None:
            self._model = model_path
            self._host = OnceHost(on_said=progress.note, on_log=progress.log)
        elif self._host.ended:
            self._host.revive()
        return self._host

    def open(self, work: Callable[[], ModelInfo]) -> Future[ModelInfo]:
        """Have `work` open the model in that process, once; returns at once."""
        if self._opening is None:
            self._opening = self._thread.submit(work)
        return self._opening

    def stop_host(self) -> None:
        """End the process and the engine that it may hold; the next job begins it again."""
        if self._host is not None:
            self._host.close()

    def end_host(self) -> None:
        """End the process: another model follows, or it may be in the middle of an answer."""
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
    """Begin a session; with a GPU, the model and vLLM's defaults are rehearsed beside all else."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(Scratch()).path
        rehearsals = prediction = serving = None
        if job.gpu is not None:
            rehearsals = stack.enter_context(Rehearsals(job.gpu, on_log=progress.log))
            prediction = MemoryPrediction(job.gpu, rehearsals, {"model": resolved.path})
            stack.enter_context(prediction)
            serving = ServingProcess(rehearsals, prediction.after, apart=False)
            # Neither an engine's start nor a single core is in the way of one more process.
            if job.validate in ("none", "budget") and len(os.sched_getaffinity(0)) > 1:
                own = stack.enter_context(Rehearsals(job.gpu, on_log=progress.log))
                thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="serving")
                stack.callback(thread.shutdown, wait=False, cancel_futures=True)
                serving = ServingProcess(own, thread.submit, apart=True)
        host = shared.host_of(resolved.path, progress)

        def parse(written: WrittenConfiguration) -> ServeConfig:
            """On the GPU that will serve, where one is named: options have its defaults."""
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
            # A configuration without limits is the default that is compared with anyway.
            yours = yours if yours.compared or yours.written.source else None
        session = Session(job, host, prediction, scratch, progress, given, serving, yours)
        if prediction is not None:
            # The default, with the least context that the policy may come to.
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
