"""What vLLM would run on here, before any model is opened."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.engine.messages.message import Reply, Request


@dataclass(frozen=True, slots=True)
class Looked(Reply):
    """`device` is vLLM's own word, such as cuda or cpu; empty where it finds none. `free_bytes` of
    the GPU's `total_bytes`, both None without one. `failing` has the reason of every library that
    does not import.
    """

    device: str
    free_bytes: int | None
    total_bytes: int | None
    failing: dict[str, str]


@dataclass(frozen=True, slots=True)
class Look(Request[Looked]):
    """Import vLLM and what reaches into it, and ask where it would run."""
