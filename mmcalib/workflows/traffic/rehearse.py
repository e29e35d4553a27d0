"""The corpus' requests served on a GPU that need not be there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmcalib.corpus.chat import ChatRequest
from mmcalib.decision.texts import Texts
from mmcalib.domain.memory import Rehearsed
from mmcalib.domain.traffic import ANSWER_TOKENS, Arrivals, Trace, Traffic
from mmcalib.engine.config_forms import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import context_of, open_model
from mmcalib.files import Scratch
from mmcalib.memory.figures import rehearsal
from mmcalib.memory.rehearse import AUTO, Rehearsals, arguments, gpu_of, taken_model
from mmcalib.models.cut import cut_checkpoint
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel, cache_dir, resolve
from mmcalib.options.run import PROBE
from mmcalib.progress import Progress, Silent
from mmcalib.proof.start import CUT_LAYERS
from mmcalib.results.memory import Rehearsal
from mmcalib.text import several
from mmcalib.workflows.corpus import ReadCorpus, read
from mmcalib.workflows.traffic.figures import traffic_figures
from mmcalib.workflows.traffic.requests import MOST_REQUESTS, trace


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
    """vLLM's startup on `gpu`, then the requests served there by vLLM's own scheduler and model
    runner; `config` and `flags` are as for `rehearse`. Items of `data` that no request names are
    not asked about, unless there are no requests at all. Raises `MmcalibError`.
    """
    progress = progress or Silent()
    found = gpu_of(gpu) if isinstance(gpu, str) else gpu
    written = read_configuration(None if config is None else Path(config), flags, model)
    path = written.source
    with Rehearsals(found, on_said=progress.note, on_log=progress.log) as rehearsals:
        args = arguments(rehearsals, written)
        resolved = resolve(taken_model(args), cache_dir=cache_dir())
        corpus = read(
            data,
            [Path(one) for one in requests],
            allowed_root=allowed_root,
            cache=cache_dir(),
            progress=progress,
            how=PROBE,
        )
        arrivals = arrivals or Arrivals()
        timed = arrivals.timed
        asked = _counted_trace(resolved, corpus, args, progress, answer_tokens, most, timed)
        with progress.step(f"rehearsing on {found.name}"):
            started = rehearsals.rehearse({**args, "model": str(resolved.path)})
        document = rehearsal(started, resolved, found, path)
        if started.kv_blocks is None:
            return document
        many = several(len(asked.requests), "request")
        serving = progress.step(f"serving {many} on {found.name}")
        with Scratch() as scratch:
            cut = cut_for_serving(Path(resolved.path), scratch.path)
            with serving:
                served = served_by(rehearsals, cut, args, started, asked, arrivals)
    return document.model_copy(
        update={
            "traffic": traffic_figures(served, asked, started),
            "assumptions": [*document.assumptions, *asked.assumptions],
        }
    )


def cut_for_serving(model: Path, scratch: Path) -> Path:
    """The folder of a model of the same widths and fewer layers: what a step takes above the loaded
    model does not depend on their number.
    """
    return cut_checkpoint(
        model, scratch / "served", text_layers=CUT_LAYERS, encoder_layers=CUT_LAYERS
    ).path


def served_by(
    rehearsals: Rehearsals,
    cut: Path,
    engine_args: Mapping[str, Any],
    started: Rehearsed,
    asked: Trace,
    arrivals: Arrivals,
) -> Traffic:
    """With as many KV blocks as startup found for the whole model."""
    blocks = {"num_gpu_blocks_override": started.kv_blocks}
    args = {**engine_args, **blocks, "model": str(cut)}
    # It decides about blocks, which are decided.
    args.pop("kv_cache_memory_bytes", None)
    return rehearsals.serve(args, asked.requests, arrivals)


def _counted_trace(
    resolved: ResolvedModel,
    corpus: ReadCorpus,
    engine_args: Mapping[str, Any],
    progress: Progress,
    answer_tokens: int,
    most: int,
    timed: bool,
) -> Trace:
    """The corpus' requests, whose text vLLM's own renderer counts, in a process of its own."""

    def count(texts: Sequence[ChatRequest]) -> list[int | None]:
        with EngineHost(on_said=progress.note, on_log=progress.log) as host:
            open_model(host, resolved, progress, context_tokens=context_of(engine_args))
            return Texts(host).each(texts)

    return trace(corpus, count, answer_tokens=answer_tokens, most=most, timed=timed)
