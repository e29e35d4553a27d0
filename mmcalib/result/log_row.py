"""One log as a row of evidence: what vLLM measured on one GPU with one configuration."""

from __future__ import annotations

from typing import Any

from mmcalib.result.part import DocumentPart


class LogFigures(DocumentPart):
    """As the log prints them, None where it does not. `activation_peak_gib` has the estimate for
    graphs in it where `consumed_gib` is stated (vLLM 0.27.0 on).
    """

    weights_gib: float | None = None
    activation_peak_gib: float | None = None
    non_torch_gib: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    encoder_budget_tokens: int | None = None
    profiled_items: int | None = None
    profiled_modality: str | None = None
    max_concurrency: float | None = None
    cudagraph_gib: float | None = None
    cudagraph_estimate_gib: float | None = None
    consumed_gib: float | None = None
    requested_gib: float | None = None
    free_at_start_gib: float | None = None


class LogRow(DocumentPart):
    """`engine_args` are those that move memory, null where the log has the default; `quality` is
    `full` with weights, KV cache and its tokens. `quote` has the lines, without what logs put
    before them; arguments, which can hold secrets, are not quoted.
    """

    id: str
    model: str
    vllm_version: str | None
    gpu: str | None
    gpu_total_gib: float | None
    engine_args: dict[str, Any]
    figures: LogFigures
    status: str
    quality: str
    derived: dict[str, Any] | None
    source: dict[str, str]
    quote: list[str]
