"""The log lines that state memory, from 0.8 to 0.33, and what they state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from mmcalib.derive.logs.quantities import NUMBER as N
from mmcalib.derive.logs.quantities import UNIT, size_bytes

Quantity = Literal[
    "weights",
    "activation_peak",
    "non_torch",
    "consumed",
    "kv_cache",
    "kv_cache_left",
    "cudagraph",
    "cudagraph_estimate",
    "gpu_free",
    "gpu_total",
    "requested",
]


@dataclass(frozen=True, slots=True)
class LogFigure:
    """One kind of line: `mark` is in it, and the pattern's groups are named as quantities.

    `unit` is a group too where the line says it; otherwise GiB. A `summary` repeats, rounded, what
    other lines have said: it counts only where they are missing.
    """

    mark: str
    pattern: re.Pattern[str]
    summary: bool = False


def _figure(mark: str, pattern: str, *, summary: bool = False) -> LogFigure:
    return LogFigure(mark, re.compile(pattern, re.ASCII), summary)


FIGURES = (
    # 0.7: "Loading model weights took 7.1694 GB"; 0.8: "Model loading took 3.9972 GB and 2.4
    # seconds"; 0.8.5 on: "14.0786 GiB and"; by 0.15: "15.67 GiB memory and".
    _figure(
        " took ",
        rf"(?:Model loading|Loading model weights) took (?P<weights>{N}) (?P<unit>{UNIT})\b",
    ),
    _figure("Available KV cache memory:", rf"memory: (?P<kv_cache>{N}) ?(?P<unit>{UNIT})\b"),
    # kv_cache_memory_bytes: nothing was profiled for it.
    _figure(
        "as specified by kv_cache_memory_bytes",
        rf"free memory (?P<gpu_free>{N}) GiB, reserved (?P<kv_cache>{N}) ?GiB memory",
    ),
    # By 0.25: what API servers decode videos with on the GPU is taken from the pool.
    _figure(
        "for frontend multimodal decoding",
        rf"KV cache memory reduced to (?P<kv_cache_left>{N}) GiB",
    ),
    # The CPU worker.
    _figure(
        "GiB for KV cache on node",
        rf"Auto set \((?P<kv_cache>{N})/{N}\) GiB for KV cache on node [^,]{{1,9}}, with "
        rf"(?P<requested>{N}) GiB requested",
    ),
    _figure("Estimated CUDA graph memory:", rf"memory: (?P<cudagraph_estimate>{N}) GiB"),
    # "Encoder graph capturing finished" where the instance only encodes, by 0.31.
    _figure("raph capturing finished", rf"secs, took (?P<cudagraph>{N}) (?P<unit>{UNIT})\b"),
    _figure(
        "CUDA graph pool memory:",
        rf"(?P<cudagraph>{N}) GiB \(actual\), (?P<cudagraph_estimate>{N}) GiB \(estimated\)",
        summary=True,
    ),
    # At the end of a start (0.10.2, again by 0.27; DEBUG in 0.11), and as the error of one that
    # found too little free.
    _figure("on startup", rf"\((?P<gpu_free>{N})/(?P<gpu_total>{N}) GiB\)\s+on startup"),
    _figure(
        "esired GPU memory utilization", rf"utilization (?:is )?\({N}, (?P<requested>{N}) GiB\)"
    ),
    _figure(
        "for non-torch memory",
        rf"(?P<weights>{N}) GiB for weight, (?P<activation_peak>{N}) GiB for "
        rf"(?:peak activation|PyTorch activation peak memory), (?P<non_torch>{N}) GiB for",
        summary=True,
    ),
    # From 0.27.0: weights and non-torch memory as one, and a peak that includes the graph estimate
    # (v1/worker/gpu_worker.py:526 of 0.27.0, :749 of 0.33.0).
    _figure(
        "for consumed memory",
        rf"(?P<consumed>{N}) GiB for consumed memory \(weights \+ non-torch\),\s+"
        rf"(?P<activation_peak>{N}) GiB\s+for peak activation",
    ),
    _figure("for CUDAGraph memory", rf"(?P<cudagraph>{N}) GiB for CUDAGraph", summary=True),
    _figure(
        "Current kv cache memory in use",
        rf"in use is (?P<kv_cache>{N}) (?P<unit>{UNIT})\b",
        summary=True,
    ),
    # V0, to 0.10.
    _figure(
        "x gpu_memory_utilization",
        rf"total_gpu_memory \((?P<gpu_total>{N})GiB\) x gpu_memory_utilization \({N}\) = "
        rf"(?P<requested>{N})GiB",
    ),
    _figure("model weights take", rf"weights take (?P<weights>{N})GiB", summary=True),
    _figure("non_torch_memory takes", rf"takes (?P<non_torch>{N})GiB"),
    _figure(
        "PyTorch activation peak memory takes", rf"peak memory takes (?P<activation_peak>{N})GiB"
    ),
    _figure("reserved for KV Cache is", rf"KV Cache is (?P<kv_cache>{N})GiB"),
    # DEBUG lines of V1.
    _figure("; Requested memory:", rf"\(util\), (?P<requested>{N}) GiB", summary=True),
    _figure("Initial free memory:", rf"free memory: (?P<gpu_free>{N}) GiB;", summary=True),
    _figure(
        "non-torch forward increase memory",
        rf"peak memory increase: (?P<activation_peak>{N})GiB; "
        rf"non-torch forward increase memory: (?P<non_torch>{N})GiB",
        summary=True,
    ),
    _figure(
        "total consumed (from mem_get_info)",
        rf"mem_get_info\): (?P<consumed>{N})GiB; weights memory: (?P<weights>{N})GiB",
        summary=True,
    ),
    # By 0.32: another process holds the weights, and vLLM may use what remains.
    _figure(
        "Weights are held outside this process",
        rf"externally held and (?P<requested>{N}) GiB remains",
    ),
    _figure("Externally held weights on device", rf"\({N}/(?P<gpu_total>{N}) GiB\) exceed"),
    # PyTorch's message, and the card's size in it.
    _figure("has a total capa", rf"total capac\w{{1,4}} of (?P<gpu_total>{N}) (?P<unit>{UNIT})\b"),
)


def figures_in(text: str) -> Iterator[tuple[Quantity, int, bool]]:
    """Each quantity that a line states, its bytes, and whether the line is a summary."""
    for figure in FIGURES:
        if figure.mark not in text:
            continue
        found = figure.pattern.search(text)
        if not found:
            continue
        groups = found.groupdict()
        unit = groups.pop("unit", None) or "GiB"
        for name, number in groups.items():
            yield cast(Quantity, name), size_bytes(number, unit), figure.summary
