"""Serve the corpus' requests in the background while a calibration runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mmcalib.checks.catalogue import LOAD_ON
from mmcalib.checks.check import Check
from mmcalib.checks.corpus import assumed_load_check
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.traffic import ANSWER_TOKENS, Arrivals, Trace, Traffic
from mmcalib.errors import MmcalibError
from mmcalib.memory.rehearse import (
    EngineArgs,
    MemoryPrediction,
    Predicted,
    Rehearsals,
    arguments_key,
)
from mmcalib.results.memory import ServedTraffic, TrafficFigures
from mmcalib.text import gib, number, plural
from mmcalib.workflows.traffic.rehearse import serve_trace, traffic_figures

# A run waits for the traffic, so mmcalib samples a larger corpus.
MOST_REQUESTS: Final = 200
_HOST_CACHE: Final = "mm_processor_cache_gb"

# Returns whether the calibrated configuration starts with this `gpu_memory_utilization`.
StartsWith = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """The process of `rehearsals`; `submit` runs work there, or in `own_process`."""

    rehearsals: Rehearsals
    submit: Callable[[Callable[[], Any]], Future[Any]]
    own_process: bool


@dataclass(frozen=True, slots=True)
class BackgroundTraffic:
    """Serves the requests `trace`, once per configuration, with the model at `model_path`."""

    prediction: MemoryPrediction
    process: ServingProcess
    trace: Trace
    model_path: Path
    _begun: dict[str, Future[Traffic | None]] = field(init=False, default_factory=dict)

    def start(self, args: EngineArgs) -> Future[Traffic | None]:
        """Start serving; None if vLLM would not start. Call after `prediction.start(args)`."""
        # The processor cache is in host memory and is sized last.
        key = arguments_key({name: value for name, value in args.items() if name != _HOST_CACHE})
        if key not in self._begun:
            self._begun[key] = self.process.submit(lambda: self._serve(args))
        return self._begun[key]

    def wait_for_figures(
        self, args: EngineArgs, started: RehearsedMemory | None
    ) -> TrafficFigures | None:
        """Wait for the figures, None if vLLM would not start. Raises MmcalibError if it dies."""
        served = self.start(args).result()
        if served is None or started is None:
            return None
        return traffic_figures(served, self.trace, started)

    def _serve(self, args: EngineArgs) -> Traffic | None:
        started = self.prediction.find_result(args)
        if not isinstance(started, RehearsedMemory) or started.kv_blocks is None:
            return None
        rehearsals = self.process.rehearsals
        return serve_trace(rehearsals, self.model_path, args, started, self.trace, Arrivals())


def finish_serving(
    serving: BackgroundTraffic,
    predicted: Predicted,
    default_args: EngineArgs,
    args: EngineArgs,
    starts_with: StartsWith,
) -> tuple[ServedTraffic | None, list[Check]]:
    """Wait for the traffic; return its figures and checks, or a check with the reason for none."""
    gpu, before, after = predicted.gpu.name, predicted.default, predicted.calibrated
    if after is None or after.kv_blocks is None:
        return None, []
    try:
        served = serving.wait_for_figures(args, after)
    except MmcalibError as error:
        detail, remedy = f"not rehearsed: {error.message}", "mmcalib rehearse --requests FILE"
        return None, [Check(LOAD_ON.of(gpu), "skip", detail, f"{remedy} --verbose")]
    if served is None:
        return None, []
    default, problem = None, ""
    try:
        default = serving.wait_for_figures(default_args, before)
    except MmcalibError as error:
        problem = error.message
    else:
        if before is None:
            problem = "its startup could not be rehearsed"
        elif default is None:
            problem = f"vLLM would not start: {before.problem}"
    document = ServedTraffic(
        gpu=gpu,
        calibrated=served,
        default=default,
        default_problem=problem,
        assumptions=list(serving.trace.assumptions),
    )
    detail = "; ".join(_describe_traffic(served, default))
    checks = [Check(LOAD_ON.of(gpu), served.status, detail, _remedy(served, starts_with))]
    if serving.trace.no_answer_length:
        checks.append(assumed_load_check(serving.trace.no_answer_length, ANSWER_TOKENS))
    return document, checks


def _describe_traffic(run: TrafficFigures, default: TrafficFigures | None) -> Iterator[str]:
    items = ""
    if run.highest is not None and run.highest.encoding:
        items = f" (items of {run.highest.encoding[0]})"
    yield (
        f"{number(run.served)} of {plural(run.requests, 'request')} served, the highest of "
        f"{number(run.steps)} steps takes {gib(run.peak_bytes)}{items}; startup reserves "
        f"{gib(run.reserved_bytes)}, rehearsed"
    )
    if run.preemptions:
        yield f"{number(run.preemptions)} preempted because the KV cache is full"
    if run.encoder_waits:
        yield f"{number(run.encoder_waits)} held up by the encoder"
    if default is not None:
        yield f"by default {number(default.steps)} steps, highest {gib(default.peak_bytes)}"
    if run.refused:
        yield f"{number(len(run.refused))} rejected: {run.refused[0]}"


def _remedy(traffic: TrafficFigures, starts_with: StartsWith) -> str:
    """Return a lower GPU share with which vLLM starts, or else general advice."""
    if traffic.status == "pass":
        return ""
    share = traffic.margin.fitting_utilization
    if share is not None and starts_with(share):
        return f"-- --gpu-memory-utilization {share:g}"
    return "a lower --max-num-batched-tokens or -- --gpu-memory-utilization leaves more free"
