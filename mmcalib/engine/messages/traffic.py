"""Requests served by vLLM's own engine core, on an imaginary GPU or on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmcalib.domain.traffic import Arrivals, Traffic, TrafficRequest
from mmcalib.engine.messages.message import Repeatable, Reply, Request
from mmcalib.gpus.gpu import Gpu


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
