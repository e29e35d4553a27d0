"""Rehearse configurations and serve requests on a simulated GPU; the library's `rehearse`.

A calibration serves its requests in the background.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mmcalib.checks.check import Check
from mmcalib.checks.corpus import assumed_load_check
from mmcalib.checks.memory import load_check, unserved_check
from mmcalib.configs import opening
from mmcalib.configs.read import read_configuration
from mmcalib.corpus.chat import ChatRequest
from mmcalib.decision.texts import Texts
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.traffic import Arrivals, SplitPrompt, Trace, Traffic
from mmcalib.errors import MmcalibError
from mmcalib.files import Scratch
from mmcalib.limits.demand import thin_steps
from mmcalib.limits.policy import TEXT_RESERVE_TOKENS
from mmcalib.models.cut import cut_checkpoint
from mmcalib.models.gpus import AUTO, Gpu, resolve_gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.prediction.rehearse import (
    EngineArgs,
    MemoryPrediction,
    Predicted,
    Rehearsals,
    arguments_key,
    rehearsal_document,
)
from mmcalib.progress import Progress, StepLog
from mmcalib.results.memory import Rehearsal, ServedTraffic, TimelineStep, TrafficFigures
from mmcalib.text import plural
from mmcalib.workflows.corpus import read_corpus
from mmcalib.workflows.traffic.requests import make_trace


def rehearse(
    model: str | None = None,
    *,
    gpu: str | Gpu = AUTO,
    configs: Sequence[str | os.PathLike[str] | None] = (None,),
    flags: Sequence[str] = (),
    engine_args: Mapping[str, Any] | None = None,
    requests: Sequence[str | os.PathLike[str]] = (),
    data: Sequence[str | Path] = (),
    arrivals: Arrivals | None = None,
    answer_tokens: int = TEXT_RESERVE_TOKENS,
    allowed_root: Path | None = None,
    progress: Progress | None = None,
) -> list[Rehearsal]:
    """Rehearse vLLM's startup on `gpu`, one `Rehearsal` per config; needs no GPU.

    Each config is a file in any form, or None for the defaults. `flags` of `vllm serve` and
    `engine_args` override each. `model` is optional if the config names one. Then vLLM's scheduler
    serves `requests`, or the items of `data` without any. Raises `mmcalib.errors.MmcalibError`.
    """
    progress, arrivals = progress or StepLog(), arrivals or Arrivals()
    device = resolve_gpu(gpu) if isinstance(gpu, str) else gpu
    written = [read_configuration(Path(one) if one else None, flags, model) for one in configs]
    found = [opening.find_configuration(one, progress) for one in written]
    documents, corpus = [], None
    if requests or data:
        paths = [Path(path) for path in requests]
        corpus = read_corpus(data, paths, allowed_root=allowed_root, progress=progress)
    with Rehearsals(device, on_note=progress.note, on_log=progress.log) as rehearsals:
        if engine_args:
            opening.reject_unknown_arguments(engine_args, opening.list_options(rehearsals).engine)
        for one in found:
            title = f"rehearsing on {device.name}"
            title += f" with {one.written.source}" if one.written.source else ""
            with opening.add_config_hints(one.written, device):
                parsed = opening.parse_configuration(rehearsals, one.written).engine_args
                args = {**parsed, **(engine_args or {}), "model": one.resolved.path}
                with progress.step(title):
                    started = rehearsals.rehearse(args)
            document = rehearsal_document(started, one.resolved, device, one.written.source)
            if corpus is not None:
                most = started.budget.max_model_len if started.budget else answer_tokens
                split = partial(_split_apart, rehearsals, one.resolved, args, progress)
                trace = make_trace(
                    corpus, split, answer_tokens=min(answer_tokens, most), timed=arrivals.timed
                )
                if started.kv_blocks is not None:
                    many = plural(len(trace.requests), "request")
                    with Scratch() as scratch, progress.step(f"serving {many} on {device.name}"):
                        cut = cut_checkpoint(Path(one.resolved.path), scratch.path / "served")
                        figures = serve_trace(rehearsals, cut, args, started, trace, arrivals)
                    said = [*document.assumptions, *trace.assumptions]
                    document = document.model_copy(update={"traffic": figures, "assumptions": said})
            documents.append(document)
    return documents


def _split_apart(
    rehearsals: Rehearsals,
    resolved: ResolvedModel,
    args: EngineArgs,
    progress: Progress,
    texts: Sequence[ChatRequest],
) -> list[SplitPrompt | None]:
    """Split texts by vLLM's own renderer."""
    context, loading = opening.configured_context(args), opening.loading_args(args)
    opening.open_model(rehearsals, resolved, progress, loading, context_tokens=context)
    return Texts(rehearsals).split(texts)


def serve_trace(
    rehearsals: Rehearsals,
    cut: Path,
    engine_args: Mapping[str, Any],
    started: RehearsedMemory,
    trace: Trace,
    arrivals: Arrivals,
) -> TrafficFigures:
    """Serve the requests with the number of KV blocks that the whole model's startup left."""
    args = {**engine_args, "num_gpu_blocks_override": started.kv_blocks, "model": str(cut)}
    # The number of blocks is fixed above.
    args.pop("kv_cache_memory_bytes", None)
    return traffic_figures(rehearsals.serve(args, trace.requests, arrivals), trace, started)


# Points of a timeline: a page cannot show more.
_POINTS: Final = 400
# Requests and items listed for the highest step.
_LISTED: Final = 20


def traffic_figures(served: Traffic, trace: Trace, rehearsed: RehearsedMemory) -> TrafficFigures:
    """Return the figures of the traffic against the reserve of the whole model's startup."""
    steps, highest = served.steps, served.highest
    peaks = [step.peak_bytes for step in steps]
    reserved_bytes = rehearsed.activation_peak_bytes + rehearsed.spare_bytes
    if highest is not None:
        origins, encoding = highest.origins[:_LISTED], highest.encoding[:_LISTED]
        highest = replace(highest, origins=origins, encoding=encoding)
    return TrafficFigures.from_value(
        served,
        rehearsed,
        requests=len(trace.requests),
        refused=[f"{origin}: {why}" for origin, why in served.refused],
        steps=len(steps),
        reserved_bytes=reserved_bytes,
        margin_bytes=reserved_bytes - _most(peaks),
        outside_bytes=rehearsed.outside_for_steps_bytes,
        preemptions=sum(step.preempted for step in steps),
        encoder_waits=sum(step.held_up for step in steps),
        encoded_items=sum(step.encoded for step in steps),
        concurrency=_most(step.scheduled for step in steps),
        most_kv_blocks=_most(step.kv_blocks for step in steps),
        most_cache_tokens=_most(step.cache_tokens for step in steps),
        cache_logical_bytes=_most(step.logical_bytes for step in steps),
        cache_alive_bytes=_most(step.alive_bytes for step in steps),
        highest=highest,
        timeline=[TimelineStep.from_value(steps[n], step=n) for n in thin_steps(peaks, _POINTS)],
        seconds=round(served.seconds, 2),
    )


def _most(figures: Iterable[int]) -> int:
    return max(figures, default=0)


# A run waits for the traffic, so mmcalib samples a larger corpus.
MOST_IN_A_RUN: Final = 200


@dataclass(frozen=True, slots=True)
class BackgroundTraffic:
    """Serves the requests `trace`, once per configuration, with the model at `model_path`, in the
    thread and process of `server`: `prediction` or another one.
    """

    prediction: MemoryPrediction
    server: MemoryPrediction
    trace: Trace
    model_path: Path
    _begun: dict[str, Future[TrafficFigures | None]] = field(init=False, default_factory=dict)

    def start(self, args: EngineArgs) -> Future[TrafficFigures | None]:
        """Start serving; None if vLLM would not start. Call after `prediction.start(args)`."""
        key = arguments_key(args)
        if key not in self._begun:
            self._begun[key] = self.server.run_after(lambda: self._serve(args))
        return self._begun[key]

    def wait_for_figures(self, args: EngineArgs) -> TrafficFigures | None:
        """Wait for the figures, None if vLLM would not start. Raises MmcalibError if that fails."""
        return self.start(args).result()

    def _serve(self, args: EngineArgs) -> TrafficFigures | None:
        started = self.prediction.find_result(args)
        if isinstance(started, MmcalibError):
            raise started
        if started is None or started.kv_blocks is None:
            return None
        own, trace = self.server.rehearsals, self.trace
        return serve_trace(own, self.model_path, args, started, trace, Arrivals())


def finish_serving(
    serving: BackgroundTraffic,
    predicted: Predicted,
    default_args: EngineArgs,
    args: EngineArgs,
    starts_with: Callable[[float], bool],
) -> tuple[ServedTraffic | None, list[Check]]:
    """Wait for the traffic; return its figures and checks, or a check with the reason for none.
    `starts_with`: does the calibrated configuration start with this `gpu_memory_utilization`?
    """
    gpu, before, after = predicted.gpu.name, predicted.default, predicted.calibrated
    if after is None or after.kv_blocks is None:
        return None, []
    served, default, problem = None, None, "vLLM would not start"
    try:
        served = serving.wait_for_figures(args)
    except MmcalibError as error:
        problem = error.message
    if served is None:
        return None, [unserved_check(gpu, problem)]
    problem = "its startup could not be rehearsed"
    try:
        if before is not None:
            default = serving.wait_for_figures(default_args)
            problem = "" if default else f"vLLM would not start: {before.start_problem}"
    except MmcalibError as error:
        problem = error.message
    document = ServedTraffic(
        gpu=gpu,
        calibrated=served,
        default=default,
        default_problem=problem,
        assumptions=list(serving.trace.assumptions),
    )
    share = served.shortfall.fitting_utilization() if served.status == "fail" else 0
    fitting = share if share and starts_with(share) else None
    checks = [load_check(gpu, served, default, fitting)]
    unsaid, tokens = serving.trace.no_answer_length, serving.trace.answer_tokens
    context = after.budget.max_model_len if after.budget else tokens
    if unsaid and tokens == min(TEXT_RESERVE_TOKENS, context):
        checks.append(assumed_load_check(unsaid, tokens))
    return document, checks
