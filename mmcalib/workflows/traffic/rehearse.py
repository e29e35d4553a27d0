"""Serve the corpus' requests on a simulated GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mmcalib.corpus.chat import ChatRequest
from mmcalib.decision.texts import Texts
from mmcalib.derive.demand import thin_steps
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.traffic import ANSWER_TOKENS, Arrivals, SplitPrompt, Trace, Traffic
from mmcalib.engine.config_forms import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import configured_context, loading_args, open_model
from mmcalib.files import Scratch
from mmcalib.memory.figures import rehearsal_document
from mmcalib.memory.rehearse import AUTO, Rehearsals, parse_arguments, pop_model, resolve_gpu
from mmcalib.models.cut import cut_checkpoint
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import cache_dir, resolve
from mmcalib.progress import Progress, Silent
from mmcalib.proof.start import CUT_LAYERS
from mmcalib.results.memory import Rehearsal, TimelineStep, TrafficFigures
from mmcalib.text import plural
from mmcalib.workflows.corpus import read_corpus
from mmcalib.workflows.traffic.requests import MOST_REQUESTS, make_trace


def rehearse_traffic(
    model: str | None = None,
    *,
    requests: Sequence[str | os.PathLike[str]] = (),
    data: Sequence[str | Path] = (),
    gpu: str | Gpu = AUTO,
    config: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    arrivals: Arrivals | None = None,
    answer_tokens: int = ANSWER_TOKENS,
    most: int = MOST_REQUESTS,
    allowed_root: Path | None = None,
    progress: Progress | None = None,
) -> Rehearsal:
    """Rehearse vLLM's startup on `gpu`, then serve requests with its scheduler and model runner.
    Serves `data` only if there are no requests or one names the item. Raises `MmcalibError`.
    """
    progress = progress or Silent()
    device = resolve_gpu(gpu) if isinstance(gpu, str) else gpu
    written = read_configuration(None if config is None else Path(config), flags, model)
    path = written.source
    with Rehearsals(device, on_note=progress.note, on_log=progress.log) as rehearsals:
        args = parse_arguments(rehearsals, written)
        resolved = resolve(pop_model(args), cache_dir=cache_dir())
        paths, root, cache = [Path(one) for one in requests], allowed_root, cache_dir()
        corpus = read_corpus(data, paths, allowed_root=root, cache=cache, progress=progress)
        arrivals, context = arrivals or Arrivals(), configured_context(args)

        def split(texts: Sequence[ChatRequest]) -> list[SplitPrompt | None]:
            """Split by vLLM's own renderer, in a separate process."""
            with EngineHost(on_note=progress.note, on_log=progress.log) as host:
                loading = loading_args(args)
                open_model(host, resolved, progress, context_tokens=context, engine_args=loading)
                return Texts(host).split(texts)

        timed = arrivals.timed
        requested = make_trace(corpus, split, answer_tokens=answer_tokens, most=most, timed=timed)
        with progress.step(f"rehearsing on {device.name}"):
            started = rehearsals.rehearse({**args, "model": str(resolved.path)})
        document = rehearsal_document(started, resolved, device, path)
        if started.kv_blocks is None:
            return document
        many = plural(len(requested.requests), "request")
        with Scratch() as scratch:
            cut = cut_for_serving(Path(resolved.path), scratch.path)
            with progress.step(f"serving {many} on {device.name}"):
                served = serve_trace(rehearsals, cut, args, started, requested, arrivals)
    return document.model_copy(
        update={
            "traffic": traffic_figures(served, requested, started),
            "assumptions": [*document.assumptions, *requested.assumptions],
        }
    )


def cut_for_serving(model: Path, scratch: Path) -> Path:
    """Cut the model to fewer layers; a step's memory above the model stays the same."""
    return cut_checkpoint(
        model, scratch / "served", text_layers=CUT_LAYERS, encoder_layers=CUT_LAYERS
    ).path


def serve_trace(
    rehearsals: Rehearsals,
    cut: Path,
    engine_args: Mapping[str, Any],
    started: RehearsedMemory,
    requested: Trace,
    arrivals: Arrivals,
) -> Traffic:
    """Serve the requests with the number of KV blocks that the whole model's startup left."""
    args = {**engine_args, "num_gpu_blocks_override": started.kv_blocks, "model": str(cut)}
    # The number of blocks is fixed above.
    args.pop("kv_cache_memory_bytes", None)
    return rehearsals.serve(args, requested.requests, arrivals)


# Points of a timeline: a page cannot show more.
_POINTS: Final = 400
# Requests and items listed for the highest step.
_LISTED: Final = 20


def traffic_figures(served: Traffic, trace: Trace, rehearsed: RehearsedMemory) -> TrafficFigures:
    """Return the figures of the traffic against the reserve of the whole model's startup."""
    steps, highest = served.steps, served.highest
    if highest is not None:
        origins, encoding = highest.origins[:_LISTED], highest.encoding[:_LISTED]
        highest = replace(highest, origins=origins, encoding=encoding)
    return TrafficFigures(
        requests=len(trace.requests),
        refused=[f"{origin}: {why}" for origin, why in served.refused],
        steps=len(steps),
        reserved_bytes=rehearsed.activation_peak_bytes,
        outside_bytes=rehearsed.outside_for_steps_bytes,
        requested_bytes=rehearsed.requested_bytes,
        total_bytes=rehearsed.total_bytes,
        preemptions=sum(step.preempted for step in steps),
        encoder_waits=sum(step.held_up for step in steps),
        encoded_items=sum(step.encoded for step in steps),
        reused_items=served.reused,
        cached_tokens=served.cached_tokens,
        concurrency=_most(step.scheduled for step in steps),
        kv_blocks=served.kv_blocks,
        most_kv_blocks=_most(step.kv_blocks for step in steps),
        cache_tokens=served.cache_tokens,
        most_cache_tokens=_most(step.cache_tokens for step in steps),
        cache_logical_bytes=_most(step.logical_bytes for step in steps),
        cache_alive_bytes=_most(step.alive_bytes for step in steps),
        highest=highest,
        timeline=[
            TimelineStep.from_value(
                one, step=n, peak_bytes=one.peak_bytes or 0, held_bytes=one.held_bytes or 0
            )
            for n, one in thin_steps(steps, _POINTS)
        ],
        seconds=round(served.seconds, 2),
    )


def _most(figures: Iterable[int | None]) -> int:
    return max((figure or 0 for figure in figures), default=0)
