"""What every stage of a calibration works with: the job, and the processes that answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmcalib.engine.answers import Answers
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ListServeOptions, ServeConfig
from mmcalib.engine.remembering import RememberingHost
from mmcalib.gpus.gpu import Gpu
from mmcalib.progress import Progress
from mmcalib.scratch import Scratch
from mmcalib.workflows.calibration.given import YourConfiguration, default_args, read_yours
from mmcalib.workflows.config_file import WrittenConfiguration, trusted
from mmcalib.workflows.memory.prediction import MemoryPrediction
from mmcalib.workflows.memory.rehearse import Rehearsals
from mmcalib.workflows.serve_flags import refuse_unknown
from mmcalib.workflows.spec import Job
from mmcalib.workflows.traffic.beside import ServingProcess

# Below the cache folder.
ANSWERS = "answers"
_REMEMBERED = (
    "what vLLM answered an earlier run is taken from there, where code, model and question are the "
    "same; --no-cache asks again"
)


@dataclass(frozen=True, slots=True)
class Session:
    """`prediction` lives on the job's GPU, as does `serving`, where requests are served; None where
    none is named. `given` are the engine arguments that the user said, as vLLM names them; `yours`
    is the configuration that they are from, whose other values the `job` has or are compared with.
    """

    job: Job
    host: EngineHost
    prediction: MemoryPrediction | None
    scratch: Path
    progress: Progress
    given: Mapping[str, Any] = field(default_factory=dict)
    serving: ServingProcess | None = None
    yours: YourConfiguration | None = None

    @property
    def default_args(self) -> dict[str, Any]:
        return default_args(self.job.policy, self.given)


@contextlib.contextmanager
def session_of(job: Job, model_path: str, progress: Progress) -> Iterator[Session]:
    """With a GPU, vLLM's defaults are rehearsed from the start, beside all else."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(Scratch()).path
        answers = _answers_of_earlier_runs(job, progress)
        rehearsals = prediction = serving = None
        if job.gpu is not None:
            rehearsals = stack.enter_context(_rehearsals(job.gpu, answers, progress))
            prediction = MemoryPrediction(job.gpu, rehearsals, {"model": model_path})
            stack.enter_context(prediction)
            serving = ServingProcess(rehearsals, prediction.after, apart=False)
            if _has_a_core_to_spare(job):
                own = stack.enter_context(_rehearsals(job.gpu, answers, progress))
                thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="serving")
                stack.callback(thread.shutdown, wait=False, cancel_futures=True)
                serving = ServingProcess(own, thread.submit, apart=True)
        host = stack.enter_context(
            RememberingHost(answers, on_said=progress.note, on_log=progress.log)
        )

        def parse(written: WrittenConfiguration) -> ServeConfig:
            """On the GPU that will serve, where one is named: options have its defaults."""
            if rehearsals is not None:
                return rehearsals.parsed(written)
            return trusted(host.ask(written.question, "reading vLLM's flags"), written.source)

        if job.engine_args:
            listed = host.ask(ListServeOptions(), "listing the arguments of vLLM")
            refuse_unknown(job.engine_args, listed.engine)
        counted = bool(job.requests or job.census)
        yours = read_yours(job.config, parse, progress, pinned=job.pin_kv_cache, counted=counted)
        given = {**job.engine_args, **(yours.given if yours else {})}
        if yours is not None:
            job = replace(job, policy=yours.taken(job.policy))
            # A configuration without limits is the default that is compared with anyway.
            yours = yours if yours.compared or yours.written.source else None
        session = Session(job, host, prediction, scratch, progress, given, serving, yours)
        if prediction is not None:
            prediction.begin(session.default_args)
            if yours is not None:
                prediction.begin(yours.engine_args)
        yield session


def _answers_of_earlier_runs(job: Job, progress: Progress) -> Answers | None:
    if job.probe.no_cache:
        return None
    return Answers(job.cache / ANSWERS, lambda: progress.note(_REMEMBERED))


def _rehearsals(gpu: Gpu, answers: Answers | None, progress: Progress) -> Rehearsals:
    return Rehearsals(gpu, answers=answers, on_log=progress.log)


def _has_a_core_to_spare(job: Job) -> bool:
    """Whether neither an engine's start nor a single core is in the way of one more process."""
    return job.validate in ("none", "budget") and len(os.sched_getaffinity(0)) > 1
