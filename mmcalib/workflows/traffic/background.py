"""The corpus' requests served under a calibration, beside the other steps of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mmcalib.checks.catalogue import LOAD_ON
from mmcalib.checks.check import Check
from mmcalib.checks.corpus import served_answers
from mmcalib.domain.memory import Rehearsed
from mmcalib.domain.traffic import ANSWER_TOKENS, Arrivals, Trace, Traffic
from mmcalib.errors import MmcalibError
from mmcalib.memory.rehearse import EngineArgs, MemoryPrediction, Predicted, Rehearsals, key_of
from mmcalib.results.memory import ServedTraffic, TrafficFigures
from mmcalib.text import gib, number, several
from mmcalib.workflows.traffic.rehearse import serve_trace, traffic_figures

# A run waits for it: of more requests a sample is served.
MOST_REQUESTS: Final = 200
_HOST_CACHE: Final = "mm_processor_cache_gb"

# Whether the calibrated configuration starts with this `gpu_memory_utilization`.
StartsWith = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """The process of `rehearsals`; `submit` has work done there, queued or `apart`."""

    rehearsals: Rehearsals
    submit: Callable[[Callable[[], Any]], Future[Any]]
    apart: bool


@dataclass(frozen=True, slots=True)
class Serving:
    """The corpus' requests, `asked` of a model that is `cut`, once per configuration."""

    prediction: MemoryPrediction
    process: ServingProcess
    asked: Trace
    cut: Path
    _begun: dict[str, Future[Traffic | None]] = field(init=False, default_factory=dict)

    def begin(self, args: EngineArgs) -> Future[Traffic | None]:
        """None where vLLM would not start; its start must be on its way in `prediction`."""
        # The processors' cache is in host memory, and is sized last.
        key = key_of({name: value for name, value in args.items() if name != _HOST_CACHE})
        if key not in self._begun:
            self._begun[key] = self.process.submit(lambda: self._under(args))
        return self._begun[key]

    def figures(self, args: EngineArgs, started: Rehearsed | None) -> TrafficFigures | None:
        """Wait for it; None where vLLM would not start. Raises MmcalibError if it ends early."""
        served = self.begin(args).result()
        if served is None or started is None:
            return None
        return traffic_figures(served, self.asked, started)

    def _under(self, args: EngineArgs) -> Traffic | None:
        found = self.prediction.known(args)
        if not isinstance(found, Rehearsed) or found.kv_blocks is None:
            return None
        rehearsals = self.process.rehearsals
        return serve_trace(rehearsals, self.cut, args, found, self.asked, Arrivals())


def finish_serving(
    serving: Serving,
    predicted: Predicted,
    default_args: EngineArgs,
    args: EngineArgs,
    starts_with: StartsWith,
) -> tuple[ServedTraffic | None, list[Check]]:
    """Waits for what was begun; the checks are what it says, or why it says nothing."""
    gpu, before, after = predicted.gpu.name, predicted.default, predicted.calibrated
    if after is None or after.kv_blocks is None:
        return None, []
    try:
        found = serving.figures(args, after)
    except MmcalibError as error:
        detail, remedy = f"not rehearsed: {error.message}", "mmcalib rehearse --requests FILE"
        return None, [Check(LOAD_ON.of(gpu), "skip", detail, f"{remedy} --verbose")]
    if found is None:
        return None, []
    default, problem = None, ""
    try:
        default = serving.figures(default_args, before)
    except MmcalibError as error:
        problem = error.message
    else:
        if before is None:
            problem = "its startup could not be rehearsed"
        elif default is None:
            problem = f"vLLM would not start: {before.problem}"
    shown = ServedTraffic(
        gpu=gpu,
        calibrated=found,
        default=default,
        default_problem=problem,
        assumptions=list(serving.asked.assumptions),
    )
    said = "; ".join(_traffic_words(found, default))
    checks = [Check(LOAD_ON.of(gpu), found.status, said, _remedy(found, starts_with))]
    if serving.asked.unsaid:
        checks.append(served_answers(serving.asked.unsaid, ANSWER_TOKENS))
    return shown, checks


def _traffic_words(found: TrafficFigures, default: TrafficFigures | None) -> Iterator[str]:
    of = ""
    if found.highest is not None and found.highest.encoding:
        of = f" (items of {found.highest.encoding[0]})"
    yield (
        f"{number(found.served)} of {several(found.requests, 'request')} served, the highest of "
        f"{number(found.steps)} steps takes {gib(found.peak_bytes)}{of}; startup reserves "
        f"{gib(found.reserved_bytes)}, rehearsed"
    )
    if found.preemptions:
        yield f"{number(found.preemptions)} preempted for want of KV cache"
    if found.encoder_waits:
        yield f"{number(found.encoder_waits)} held up by the encoder"
    if default is not None:
        yield f"by default {number(default.steps)} steps, highest {gib(default.peak_bytes)}"
    if found.refused:
        yield f"{number(len(found.refused))} refused: {found.refused[0]}"


def _remedy(found: TrafficFigures, starts_with: StartsWith) -> str:
    """A lower share of the GPU, tried before it is named, else what may help."""
    if found.status == "pass":
        return ""
    share = found.margin.fitting_utilization
    if share is not None and starts_with(share):
        return f"-- --gpu-memory-utilization {share:g}"
    return (
        "--max-num-batched-tokens less, or -- --gpu-memory-utilization less: that leaves more free"
    )
