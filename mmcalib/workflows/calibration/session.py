"""What every stage of a calibration works with: the job, and the processes that answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmcalib.closing import Closing
from mmcalib.derive.policy import FIT
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.config_forms import WrittenConfiguration, trusted
from mmcalib.engine.helpers import OnceHost
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ListServeOptions, ServeConfig
from mmcalib.engine.vllm_config import refuse_unknown
from mmcalib.models import ResolvedModel
from mmcalib.progress import Progress
from mmcalib.scratch import Scratch
from mmcalib.workflows.calibration.given import YourConfiguration, default_args, read_yours
from mmcalib.workflows.memory.explored import refuse_too_small
from mmcalib.workflows.memory.prediction import MemoryPrediction
from mmcalib.workflows.memory.rehearse import Rehearsals
from mmcalib.workflows.read import ReadCorpus
from mmcalib.workflows.spec import Job
from mmcalib.workflows.traffic.beside import ServingProcess


@dataclass(frozen=True, slots=True)
class Session:
    """`prediction` lives on the job's GPU, as does `serving`, where requests are served; None where
    none is named. `given` are the engine arguments that the user said, as vLLM names them; `yours`
    is the configuration that they are from, whose other values the `job` has or are compared with.
    `fitting` fails where no configuration of the model starts on the GPU.
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
    """What jobs over one corpus have in common: its census, and the process that has a model open
    and is asked nothing twice.
    """

    corpus: ReadCorpus | None = None
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
    """With a GPU, whether the model fits and vLLM's defaults are rehearsed from the start, beside
    all else.
    """
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(Scratch()).path
        rehearsals = prediction = serving = None
        if job.gpu is not None:
            rehearsals = stack.enter_context(Rehearsals(job.gpu, on_log=progress.log))
            prediction = MemoryPrediction(job.gpu, rehearsals, {"model": resolved.path})
            stack.enter_context(prediction)
            serving = ServingProcess(rehearsals, prediction.after, apart=False)
            if _has_a_core_to_spare(job):
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
            fitting = partial(refuse_too_small, prediction, _least(session), resolved.id)
            session = replace(session, fitting=prediction.after(fitting))
            prediction.begin(session.default_args)
            if yours is not None:
                prediction.begin(yours.engine_args)
        yield session


def _least(session: Session) -> dict[str, Any]:
    """The default, with the least context that the policy may come to."""
    args, policy = session.default_args, session.job.policy
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        if (value := getattr(policy, name)) is not None:
            args[name] = value
    if policy.max_model_len == FIT:
        args["max_model_len"] = max(1, policy.text_reserve_tokens)
    return args


def _has_a_core_to_spare(job: Job) -> bool:
    """Whether neither an engine's start nor a single core is in the way of one more process."""
    return job.validate in ("none", "budget") and len(os.sched_getaffinity(0)) > 1
