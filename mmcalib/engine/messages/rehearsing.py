"""vLLM's startup on an imaginary GPU, and requests served there or on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.domain.traffic import Arrivals, Traffic, TrafficRequest
from mmcalib.engine.messages.closing import Done
from mmcalib.engine.messages.message import Repeatable, Reply, Request
from mmcalib.gpus.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Imagine(Request[Done]):
    """Put the child on an imaginary GPU for good. Must come before anything else is asked."""

    sets_state: ClassVar[bool] = True

    gpu: Gpu


@dataclass(frozen=True, slots=True)
class RehearsalFound(Reply):
    """How it went."""

    rehearsed: Rehearsed


@dataclass(frozen=True, slots=True)
class Rehearse(Repeatable, Request[RehearsalFound]):
    """Run vLLM's startup on an imaginary GPU, as far as the size of its KV cache, then `steps`.

    The first one imagines the GPU, where `Imagine` has not; the child then answers for no other.
    `engine_args` has underscored names and the model's folder.
    """

    engine_args: dict[str, Any]
    gpu: Gpu
    steps: tuple[EncoderStep, ...] = ()


@dataclass(frozen=True, slots=True)
class TrafficServed(Reply):
    """How it went."""

    traffic: Traffic


@dataclass(frozen=True, slots=True)
class ServeTraffic(Repeatable, Request[TrafficServed]):
    """Start vLLM's engine core and serve the requests, in their order, until all have answers.

    Without a `gpu` it is the engine of this machine, and nothing is known of its memory. Answers
    are made up: as long as each request says, of one token.
    """

    engine_args: dict[str, Any]
    requests: tuple[TrafficRequest, ...]
    arrivals: Arrivals
    gpu: Gpu | None
