"""What one rehearsal found, as one document: `mmcalib rehearse --json` prints it."""

from __future__ import annotations

from typing import Literal

from mmcalib.result.budget import EncoderBudget
from mmcalib.result.memory import Memory
from mmcalib.result.part import DocumentPart
from mmcalib.result.peak_tensor import PeakTensor
from mmcalib.result.traffic import TrafficFigures


class Phase(DocumentPart):
    """The most that a phase of vLLM's profile held above the loaded model, and in what."""

    name: str
    peak_bytes: int
    scratch_bytes: int
    scratch_operation: str
    largest: list[PeakTensor]


class Rehearsal(DocumentPart):
    """vLLM's startup on one imaginary GPU. `starts`: whether it would; `memory.note` says why not.

    True for the `vllm` version named, and for one rank of `tensor_parallel_size`.
    `traffic` is what requests took that were served there, None where none were.
    `encoder_estimate_bytes` is the encoder's peak by formula; `cross_check` says where it differs.
    """

    memory: Memory
    budget: EncoderBudget | None
    assumptions: list[str]
    starts: bool
    model: str
    source: Literal["local", "hub", "bundled"]
    config: str
    gpu: str
    capability: str
    vllm: str
    mmcalib: str
    runner: str
    sampler: str
    attention: str
    encoder_attention: str | None
    dtype: str
    tensor_parallel_size: int
    phases: list[Phase]
    encoder_estimate_bytes: int | None
    cross_check: str
    seconds: float
    traffic: TrafficFigures | None = None

    def __repr__(self) -> str:
        """One line."""
        tokens, starts = self.memory.kv_cache_tokens, "starts" if self.starts else "does not start"
        cache = "" if tokens is None else f"; KV cache {tokens:,} tokens"
        return f"<Rehearsal of {self.model}, vLLM {self.vllm} on {self.gpu}: {starts}{cache}>"

    __str__ = __repr__
