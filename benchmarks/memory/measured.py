"""Starts that were measured on a GPU (reports/gpu), also predicted without their own figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu.results import Result, read

from memory.allowances import Allowances
from memory.scores import CONSTANT_ACTIVATION_BYTES


@dataclass(frozen=True, slots=True)
class Start:
    """A measured start: the KV pool predicted and measured, the card's size; bytes.

    `held_out_bytes` is the pool predicted by the allowances without the figures of this model.
    """

    key: str
    model: str
    vllm: str
    gpu: str
    predicted_bytes: int
    held_out_bytes: float
    measured_bytes: int
    total_bytes: int
    left_bytes: int

    @property
    def error(self) -> float:
        return self.predicted_bytes - self.measured_bytes

    @property
    def held_out_error(self) -> float:
        return self.held_out_bytes - self.measured_bytes

    @property
    def baseline_errors(self) -> tuple[float, float]:
        left = self.left_bytes - self.measured_bytes
        return left, left - CONSTANT_ACTIVATION_BYTES


def load(path: Path, allowances: Allowances) -> list[Start]:
    """Return the last start of each case that ran, in the file's order."""
    last = {one.key: one for one in read(path) if one.device == "cuda"}
    return [start for one in last.values() for start in _starts(one, allowances)]


def _starts(result: Result, allowances: Allowances) -> Iterator[Start]:
    """Yield the result's start; nothing where it failed."""
    rehearsed, started = result.rehearsed, result.started
    if rehearsed is None or started is None:
        return
    measured, outside = started["gpu"], allowances.outside_bytes("newer", result.model)
    # Only an encoder that convolves is allowed more than a card of this kind.
    if rehearsed["non_torch_bytes"] > 1.1 * allowances.outside_bytes("newer"):
        outside += allowances.convolution_bytes(result.model)
    graphs = allowances.fit(result.model).predict(rehearsed["cudagraphs"], layers=0)
    computed = sum(rehearsed[f"{name}_bytes"] for name in ("kv_cache", "non_torch", "cudagraph"))
    yield Start(
        key=result.key,
        model=result.model,
        vllm=result.vllm,
        gpu=result.gpu,
        predicted_bytes=rehearsed["kv_cache_bytes"],
        held_out_bytes=computed - outside - graphs,
        measured_bytes=measured["kv_cache_bytes"],
        total_bytes=measured["total_bytes"],
        left_bytes=rehearsed["requested_bytes"] - rehearsed["weights_bytes"],
    )
