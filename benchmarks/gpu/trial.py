"""One case: rehearsed, started and sent its burst, each engine in a process of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gpu import nvml
from gpu.cases import Case
from gpu.results import Result
from mmcalib.checks.engine import components
from mmcalib.corpus.chat import PART_OF, ChatRequest, text_part, url_part
from mmcalib.domain.memory import EngineStarted, RehearsedMemory
from mmcalib.engine import messages as m
from mmcalib.engine.environment import CARD_VARIABLE
from mmcalib.engine.host import EngineHost
from mmcalib.errors import MmcalibError
from mmcalib.media.blank import write_blank
from mmcalib.models.catalogue import find_model
from mmcalib.models.checkpoint import materialise
from mmcalib.models.cut import cut_checkpoint, read_config, read_depths
from mmcalib.models.gpus import Gpu

# Rehearsals are single-threaded; the starts beside them take cores too.
CORES_PER_REHEARSAL = 2
PROFILE_S = 60.0


@dataclass(slots=True)
class Bench:
    """Where cases run: the GPU, its vLLM, the scratch folder, and how long a step may take."""

    gpu: Gpu
    vllm: str
    device: str
    scratch: Path
    logs: Path
    step_s: float = 150.0
    _pool: ThreadPoolExecutor = field(init=False)
    _warming: ThreadPoolExecutor = field(init=False)
    _rehearsing: list[EngineHost] = field(init=False, default_factory=list)
    _warm: tuple[str, EngineHost, Future[Any]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        workers = max(1, (os.cpu_count() or 1) // CORES_PER_REHEARSAL)
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="rehearsal")
        self._warming = ThreadPoolExecutor(max_workers=1, thread_name_prefix="warm")

    def checkpoint(self, case: Case, *, cut: bool = True) -> Path:
        """The folder of the case's model, without weights; `cut` as deep as the case says."""
        geometry = find_model(case.model)
        assert geometry is not None, case.model
        name = case.model.replace("/", "--")
        whole = materialise(geometry, self.scratch / name)
        if not cut or case.layers is None:
            return whole
        target = self.scratch / f"{name}-cut"
        return target if target.is_dir() else cut_checkpoint(whole, target, case.layers)

    def rehearse(self, cases: Sequence[Case]) -> dict[str, Future[RehearsedMemory]]:
        """Begin to rehearse every case, those of one model in one process; returns at once."""
        by_model: dict[str, list[Case]] = {}
        for case in cases:
            # Before anything reads them: two that write one folder would be in each other's way.
            self.checkpoint(case)
            self.checkpoint(case, cut=False)
            by_model.setdefault(case.model, []).append(case)
        futures: dict[str, Future[RehearsedMemory]] = {case.key: Future() for case in cases}
        for group in by_model.values():
            self._pool.submit(self._rehearsed, group, futures)
        return futures

    def _rehearsed(self, cases: list[Case], futures: dict[str, Future[RehearsedMemory]]) -> None:
        with self._host("rehearsal") as host:
            self._rehearsing.append(host)
            for case in cases:
                try:
                    args = {**_args(case), "model": str(self.checkpoint(case, cut=False))}
                    request = m.Rehearse(args, self.gpu)
                    futures[case.key].set_result(host.ask(request, "rehearsing"))
                except BaseException as error:  # noqa: BLE001 - handed to whoever asks for it
                    futures[case.key].set_exception(error)

    def run(
        self, case: Case, rehearsal: Future[RehearsedMemory], then: Case | None = None
    ) -> Result:
        """Start the case and send its burst, and warm the process of the one after it; never raises
        for what vLLM or the GPU does.
        """
        began = time.monotonic()
        failed: dict[str, str] = {}
        before = nvml.used_bytes()
        with self._engine(case) as host:
            if then is not None:
                self.warm(then)
            started, burst = self._start(host, case, failed)
        after = nvml.settled_bytes(before)
        seconds = round(time.monotonic() - began, 1)
        rehearsed: RehearsedMemory | None = None
        try:
            rehearsed = rehearsal.result(timeout=self.step_s)
        except Exception as error:  # noqa: BLE001 - the start's figures are worth keeping
            failed["rehearsal"] = str(error) or type(error).__name__
        both = components(rehearsed, started) if rehearsed and started else []
        return Result(
            key=case.key,
            model=case.model,
            kind=case.kind,
            device=self.device,
            gpu=self.gpu.name,
            vllm=self.vllm,
            seconds=seconds,
            engine_args=dict(case.engine_args),
            components=[asdict(one) for one in both],
            rehearsed=None if rehearsed is None else _short(rehearsed),
            started=None if started is None else asdict(started),
            burst=burst,
            failed=failed,
            used_before_bytes=before,
            used_after_bytes=after,
        )

    def _start(
        self, host: EngineHost, case: Case, failed: dict[str, str]
    ) -> tuple[EngineStarted | None, dict[str, Any] | None]:
        true = read_depths(read_config(self.checkpoint(case, cut=False)))
        args = {**_args(case), "model": str(self.checkpoint(case)), "load_format": "dummy"}
        if self.device == "cpu":
            args["enforce_eager"] = True
        request = m.StartEngine(args, true, PROFILE_S)
        try:
            started = host.ask(request, "starting the engine")
        except MmcalibError as error:
            failed["start"] = str(error)
            return None, None
        if case.burst is None:
            return started, None
        sent = {"items": case.burst_items, "survived": False}
        try:
            answer = host.ask(self._burst(case), "answering the burst")
        except MmcalibError as error:
            failed["burst"] = str(error)
            return started, sent
        refused = [one.error for one in answer.answers if one.error]
        if refused:
            failed["burst"] = refused[0]
        return started, {
            **sent,
            "survived": not refused,
            "rejected": len(refused),
            "seconds": round(answer.seconds, 2),
            "largest_encoder_step_tokens": answer.largest_encoder_step_tokens,
            "item_tokens": max((sum(one.item_tokens) for one in answer.answers), default=0),
            "peak_bytes": answer.peak_bytes,
        }

    def _burst(self, case: Case) -> m.Replay:
        assert case.burst is not None
        folder, kind = self.scratch / "burst", PART_OF[case.burst.modality]
        folder.mkdir(exist_ok=True)
        prompts = []
        for number in range(case.burst_items):
            path = write_blank(case.burst, number, folder)
            content = [text_part("Describe this."), url_part(kind, path.as_uri())]
            prompts.append(m.ReplayPrompt(path.name, ChatRequest.of_user(content), ()))
        return m.Replay(tuple(prompts))

    def again(self, results: Sequence[Result]) -> Iterator[Result]:
        """The same measured figures beside what is rehearsed now. Raises what rehearsing raises."""
        cases = [
            Case(
                *(one.model, one.kind, one.engine_args),
                runner=one.runner,
                graphs=":graphs:" in one.key,
            )
            for one in results
        ]
        futures = self.rehearse(cases)
        for one, case in zip(results, cases, strict=True):
            rehearsed = futures[case.key].result()
            started = TypeAdapter(EngineStarted).validate_python(one.started)
            found = [asdict(part) for part in components(rehearsed, started)]
            yield replace(one, components=found, rehearsed=_short(rehearsed))

    def warm(self, case: Case) -> None:
        """Let the process of the case to come import vLLM already: that takes no memory of the
        GPU.
        """
        with _card(case):
            host = self._host("engine")
        asked = self._warming.submit(host.ask, m.ListServeOptions(), "warming up")
        self._warm = (case.key, host, asked)

    def close(self) -> None:
        """End every process. Rehearsals that nobody waits for are dropped."""
        self._drop_warm()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for host in list(self._rehearsing):
            host.close()
        self._pool.shutdown(wait=True)
        self._warming.shutdown(wait=True)

    def _host(self, name: str) -> EngineHost:
        return EngineHost(log=self.logs / f"{name}.log", silence_s=self.step_s)

    def _engine(self, case: Case) -> EngineHost:
        """The process that was warmed for this case, or a new one."""
        if self._warm is not None and self._warm[0] == case.key:
            _, host, asked = self._warm
            self._warm = None
            with contextlib.suppress(MmcalibError, TimeoutError):
                asked.result(timeout=self.step_s)
            return host
        self._drop_warm()
        with _card(case):
            return self._host("engine")

    def _drop_warm(self) -> None:
        if self._warm is not None:
            self._warm[1].close()
            self._warm = None


@contextlib.contextmanager
def _card(case: Case) -> Iterator[None]:
    """While open, children are told to stay on the case's card."""
    if case.card_gib is None:
        yield
        return
    os.environ[CARD_VARIABLE] = str(int(case.card_gib * 2**30))
    try:
        yield
    finally:
        del os.environ[CARD_VARIABLE]


def _args(case: Case) -> dict[str, Any]:
    return {**case.engine_args, "dtype": "bfloat16", "enforce_eager": not case.graphs}


def _short(rehearsed: RehearsedMemory) -> dict[str, Any]:
    """Without the tensors behind each peak, which are most of it."""
    fields = asdict(rehearsed)
    fields["phases"] = {phase.name: phase.peak_bytes for phase in rehearsed.phases}
    return fields
