"""The corpus' requests served under a calibration, beside the other steps of its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mmcalib.checks.catalogue.traffic import TRAFFIC_ON
from mmcalib.checks.check import Check
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.traffic import Arrivals, Traffic
from mmcalib.errors import MmcalibError
from mmcalib.result.traffic import ServedTraffic, TrafficFigures
from mmcalib.wording import gib, number
from mmcalib.workflows.decision.texts import Texts
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.memory.prediction import EngineArgs, MemoryPrediction
from mmcalib.workflows.read import ReadCorpus
from mmcalib.workflows.traffic.figures import traffic_figures
from mmcalib.workflows.traffic.serving import Serves, cut_for_serving, served_by
from mmcalib.workflows.traffic.trace import Trace, trace

# A run waits for it: of more requests a sample is served.
_MOST_REQUESTS: Final = 200


@dataclass(frozen=True, slots=True)
class ServedBeside:
    """Requests under way on the imaginary GPU, under vLLM's defaults and as calibrated."""

    asked: Trace
    default: Future[Traffic | None]
    calibrated: Future[Traffic | None]


def begin_serving(
    prediction: MemoryPrediction,
    rehearsals: Serves,
    texts: Texts,
    corpus: ReadCorpus,
    model: Path,
    default: EngineArgs,
    calibrated: EngineArgs,
    scratch: Path,
) -> ServedBeside:
    """Serve the corpus' requests under both; returns once their text is counted."""
    asked = trace(corpus, texts.each, most=_MOST_REQUESTS)
    cut = cut_for_serving(model, scratch)

    def serving(args: EngineArgs) -> Future[Traffic | None]:
        return prediction.after(lambda: _served(prediction, rehearsals, cut, args, asked))

    # What was asked for first, and then what it is compared with.
    return ServedBeside(asked, calibrated=serving(calibrated), default=serving(default))


def _served(
    prediction: MemoryPrediction,
    rehearsals: Serves,
    cut: Path,
    args: Mapping[str, Any],
    asked: Trace,
) -> Traffic | None:
    """None where vLLM would not start. Raises EngineError where serving ends early."""
    started = prediction.known(args)
    if not isinstance(started, Rehearsed) or started.kv_blocks is None:
        return None
    return served_by(rehearsals, cut, args, started, asked, Arrivals())


def finish_serving(
    beside: ServedBeside, predicted: Predicted
) -> tuple[ServedTraffic | None, Check | None]:
    """Waits for both; the second is what the first says, or why it says nothing."""
    name = TRAFFIC_ON.of(predicted.gpu.name)
    if predicted.calibrated is None or predicted.calibrated.kv_blocks is None:
        return None, None
    try:
        served = beside.calibrated.result()
    except MmcalibError as error:
        detail = f"not rehearsed: {error.message}"
        return None, Check(name, "skip", detail, "mmcalib rehearse --requests FILE --verbose")
    if served is None:
        return None, None
    found = traffic_figures(served, beside.asked, predicted.calibrated)
    shown = ServedTraffic(
        gpu=predicted.gpu.name,
        calibrated=found,
        default=_default(beside, predicted.default),
        assumptions=list(beside.asked.assumptions),
    )
    return shown, Check(name, found.status, _said(found, shown.default), _remedy(found))


def _default(beside: ServedBeside, started: Rehearsed | None) -> TrafficFigures | None:
    try:
        served = beside.default.result()
    except MmcalibError:
        # It is only compared with.
        return None
    if served is None or started is None:
        return None
    return traffic_figures(served, beside.asked, started)


def _said(found: TrafficFigures, default: TrafficFigures | None) -> str:
    """The highest step, what it was held against, and how far serving went."""
    highest = f"the highest of {number(found.steps)} steps takes {gib(found.peak_bytes)}"
    if found.highest is not None and found.highest.encoding:
        highest += f" (items of {found.highest.encoding[0]})"
    parts = [
        f"{number(found.served)} of {number(found.requests)} requests served, {highest}; "
        f"startup reserves {gib(found.reserved_bytes)}, rehearsed"
    ]
    parts += _counts(found)
    if default is not None:
        parts.append(f"by default {number(default.steps)} steps, highest {gib(default.peak_bytes)}")
    if found.refused:
        parts.append(f"{number(len(found.refused))} refused: {found.refused[0]}")
    return "; ".join(parts)


def _counts(found: TrafficFigures) -> Iterator[str]:
    if found.preemptions:
        yield f"{number(found.preemptions)} preempted for want of KV cache"
    if found.encoder_waits:
        yield f"{number(found.encoder_waits)} held up by the encoder"


def _remedy(found: TrafficFigures) -> str:
    if found.status == "pass":
        return ""
    return "--max-num-batched-tokens less, or --gpu-memory-utilization less, which leaves more free"
