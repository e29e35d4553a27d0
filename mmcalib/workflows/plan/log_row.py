"""A log as a row of evidence, as others can be compared with it."""

from __future__ import annotations

import re
from typing import Any, Final

from mmcalib.derive.logs import StartupLog
from mmcalib.derive.logs.log_failures import failure_words
from mmcalib.result.log_row import LogFigures, LogRow
from mmcalib.sizes import GIB
from mmcalib.version import __version__

# Named in every row; null where the log has the default.
_ALWAYS: Final = (
    *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization"),
    *("limit_mm_per_prompt", "mm_processor_kwargs", "dtype", "quantization"),
    *("tensor_parallel_size", "enforce_eager"),
)
_NO_NAME: Final = re.compile(r"[^a-z0-9.]+")


def row(log: StartupLog, engine_args: dict[str, Any], model: str, gpu: str | None) -> LogRow:
    """The log of `model` on `gpu`; `engine_args` are those of it that move memory."""
    figures = log_figures(log)
    versions = " or ".join(log.release.versions)
    by_lines = " (line numbers)" if log.release.known_by == "lines" else ""
    name = "-".join(part for part in (model.rpartition("/")[2], gpu, versions) if part)
    full = figures.weights_gib and figures.kv_cache_gib and figures.kv_cache_tokens
    args = dict.fromkeys(_ALWAYS) | engine_args
    args.pop("model", None)
    return LogRow(
        id=_NO_NAME.sub("-", name.lower()).strip("-"),
        model=model,
        vllm_version=f"{versions}{by_lines}" if versions else None,
        gpu=gpu,
        gpu_total_gib=_gib(log.gpu_total_bytes),
        engine_args=args,
        figures=figures,
        status=_status(log),
        quality="full" if full else "partial",
        derived=_derived(log),
        source={"kind": "mmcalib plan --log", "mmcalib": __version__},
        quote=list(log.quote),
    )


def log_figures(log: StartupLog) -> LogFigures:
    """The figures that the log states itself, of the worker that decides."""
    encoder = log.encoder
    stated = log.all_bytes("non_torch")
    return LogFigures(
        weights_gib=_gib(log.weights_bytes),
        activation_peak_gib=_gib(log.activation_peak_bytes),
        non_torch_gib=_gib(max(stated, default=None)),
        kv_cache_gib=_gib(log.kv_cache_bytes),
        kv_cache_tokens=log.kv_cache_tokens,
        encoder_budget_tokens=encoder.tokens if encoder else None,
        profiled_items=encoder.items if encoder else None,
        profiled_modality=encoder.modality if encoder else None,
        max_concurrency=log.max_concurrency,
        cudagraph_gib=_gib(log.cudagraph_bytes),
        cudagraph_estimate_gib=_gib(log.cudagraph_estimate_bytes),
        consumed_gib=_gib(log.consumed_bytes),
        requested_gib=_gib(min(log.all_bytes("requested"), default=None)),
        free_at_start_gib=_gib(log.gpu_free_bytes),
    )


def _gib(nbytes: int | None) -> float | None:
    """With the four decimals that the most precise line has."""
    return None if nbytes is None else round(nbytes / GIB, 4)


def _status(log: StartupLog) -> str:
    if log.failure is not None:
        return f"failed: {failure_words(log.failure)}"
    return "started" if log.serves or log.kv_cache_tokens else "incomplete"


def _derived(log: StartupLog) -> dict[str, Any] | None:
    """What follows from several figures."""
    found: dict[str, Any] = {}
    if log.consumed_bytes is not None:
        found["non_torch_gib"] = _gib(log.non_torch_bytes)
        found["activation_without_graph_estimate_gib"] = _gib(log.activation_alone_bytes)
    if log.closures:
        found["closes"] = all(closure.closes for closure in log.closures)
    return {name: value for name, value in found.items() if value is not None} or None
