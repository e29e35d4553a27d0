"""The corpus' requests served under a calibration, beside the other steps of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

from mmcalib.checks.check import Check
from mmcalib.checks.corpus import served_answers
from mmcalib.checks.reserve import TRAFFIC_ON
from mmcalib.decision.texts import Texts
from mmcalib.domain.memory import Rehearsed
from mmcalib.domain.traffic import ANSWER_TOKENS, Arrivals, Trace, Traffic
from mmcalib.errors import MmcalibError
from mmcalib.memory.rehearse import EngineArgs, MemoryPrediction, Predicted, Rehearsals, key_of
from mmcalib.results.memory import ServedTraffic, TrafficFigures
from mmcalib.text import gib, number, several
from mmcalib.workflows.corpus import ReadCorpus
from mmcalib.workflows.traffic.figures import traffic_figures
from mmcalib.workflows.traffic.rehearse import cut_for_serving, served_by
from mmcalib.workflows.traffic.requests import trace

# A run waits for it: of more requests a sample is served.
_MOST_REQUESTS: Final = 200
_HOST_CACHE: Final = "mm_processor_cache_gb"

T = TypeVar("T")
# Whether the calibrated configuration starts with this `gpu_memory_utilization`.
StartsWith = Callable[[float], bool]


class Submit(Protocol):
    """Has work done in another thread; returns at once."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """The process of `rehearsals`, which `submit` has work done in: after what else is rehearsed
    there, or `apart` from that.
    """

    rehearsals: Rehearsals
    submit: Submit
    apart: bool


@dataclass(frozen=True, slots=True)
class Serving:
    """The corpus' requests, `asked` of a model that is `cut`, each configuration once and as
    `prediction` has it rehearsed.
    """

    prediction: MemoryPrediction
    process: ServingProcess
    asked: Trace
    cut: Path
    _begun: dict[str, Future[Traffic | None]] = field(init=False, default_factory=dict)

    @classmethod
    def of(
        cls,
        prediction: MemoryPrediction,
        process: ServingProcess,
        texts: Texts,
        corpus: ReadCorpus,
        model: Path,
        scratch: Path,
    ) -> Serving:
        """Counts their text, while the process gets ready."""
        process.submit(process.rehearsals.imagine)
        asked = trace(corpus, texts.each, most=_MOST_REQUESTS)
        return cls(prediction, process, asked, cut_for_serving(model, scratch))

    def begin(self, args: EngineArgs) -> Future[Traffic | None]:
        """None where vLLM would not start, or its start could not be rehearsed. It must be on its
        way in `prediction`.
        """
        # The processors' cache is in host memory, and is sized last.
        key = key_of({name: value for name, value in args.items() if name != _HOST_CACHE})
        if key not in self._begun:
            self._begun[key] = self.process.submit(lambda: self._under(args))
        return self._begun[key]

    def figures(self, args: EngineArgs) -> TrafficFigures | None:
        """Waits for it; None where it is not served."""
        try:
            served, started = self.begin(args).result(), self.prediction.known(args)
        except MmcalibError:
            return None
        if served is None or not isinstance(started, Rehearsed):
            return None
        return traffic_figures(served, self.asked, started)

    def _under(self, args: EngineArgs) -> Traffic | None:
        found = self.prediction.known(args)
        if not isinstance(found, Rehearsed) or found.kv_blocks is None:
            return None
        rehearsals = self.process.rehearsals
        return served_by(rehearsals, self.cut, args, found, self.asked, Arrivals())


@dataclass(frozen=True, slots=True)
class ServedBeside:
    """Requests under way on the imaginary GPU, under vLLM's defaults and as calibrated."""

    asked: Trace
    default: Future[Traffic | None]
    calibrated: Future[Traffic | None]


def begin_serving(serving: Serving, default: EngineArgs, calibrated: EngineArgs) -> ServedBeside:
    """Serve them under both, what was asked for first; returns at once."""
    return ServedBeside(
        serving.asked, calibrated=serving.begin(calibrated), default=serving.begin(default)
    )


def finish_serving(
    beside: ServedBeside, predicted: Predicted, starts_with: StartsWith
) -> tuple[ServedTraffic | None, list[Check]]:
    """Waits for all of it; the checks are what they say, or why they say nothing."""
    gpu, after = predicted.gpu.name, predicted.calibrated
    if after is None or after.kv_blocks is None:
        return None, []
    try:
        served = beside.calibrated.result()
    except MmcalibError as error:
        detail, remedy = f"not rehearsed: {error.message}", "mmcalib rehearse --requests FILE"
        return None, [Check(TRAFFIC_ON.of(gpu), "skip", detail, f"{remedy} --verbose")]
    if served is None:
        return None, []
    found = traffic_figures(served, beside.asked, after)
    default, problem = _default(beside, predicted.default)
    shown = ServedTraffic(
        gpu=gpu,
        calibrated=found,
        default=default,
        default_problem=problem,
        assumptions=list(beside.asked.assumptions),
    )
    said = _said(found, default)
    checks = [Check(TRAFFIC_ON.of(gpu), found.status, said, _remedy(found, starts_with))]
    if beside.asked.unsaid:
        checks.append(served_answers(beside.asked.unsaid, ANSWER_TOKENS))
    return shown, checks


def _default(beside: ServedBeside, started: Rehearsed | None) -> tuple[TrafficFigures | None, str]:
    """What it is compared with, or why that is not known."""
    try:
        served = beside.default.result()
    except MmcalibError as error:
        return None, error.message
    if started is None:
        return None, "its startup could not be rehearsed"
    if served is None:
        return None, f"vLLM would not start: {started.problem}"
    return traffic_figures(served, beside.asked, started), ""


def _said(found: TrafficFigures, default: TrafficFigures | None) -> str:
    """The highest step, what it was held against, and how far serving went."""
    parts = [
        f"{number(found.served)} of {several(found.requests, 'request')} served, {_highest(found)}"
    ]
    parts += _counts(found)
    if default is not None:
        parts.append(f"by default {number(default.steps)} steps, highest {gib(default.peak_bytes)}")
    if found.refused:
        parts.append(f"{number(len(found.refused))} refused: {found.refused[0]}")
    return "; ".join(parts)


def _highest(found: TrafficFigures) -> str:
    said = f"the highest of {number(found.steps)} steps takes {gib(found.peak_bytes)}"
    if found.highest is not None and found.highest.encoding:
        said += f" (items of {found.highest.encoding[0]})"
    return f"{said}; startup reserves {gib(found.reserved_bytes)}, rehearsed"


def _counts(found: TrafficFigures) -> Iterator[str]:
    if found.preemptions:
        yield f"{number(found.preemptions)} preempted for want of KV cache"
    if found.encoder_waits:
        yield f"{number(found.encoder_waits)} held up by the encoder"


def _remedy(found: TrafficFigures, starts_with: StartsWith) -> str:
    """A lower share of the GPU, tried before it is named, else what may help."""
    if found.status == "pass":
        return ""
    share = found.margin.utilization
    if share is not None and starts_with(share):
        return f"-- --gpu-memory-utilization {share:g}"
    return (
        "--max-num-batched-tokens less, or -- --gpu-memory-utilization less: that leaves more free"
    )
