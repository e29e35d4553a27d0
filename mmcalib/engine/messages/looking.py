"""What vLLM would run on here, before any model is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Look:
    """Import vLLM and what reaches into it, and ask where it would run."""

    kind: Literal["look"] = "look"


@dataclass(frozen=True, slots=True)
class Looked:
    """`device` is vLLM's own word, such as cuda or cpu; empty where it finds none. `free_bytes` of
    the GPU's `total_bytes`, both None without one. `failing` has the reason of every library that
    does not import.
    """

    device: str
    free_bytes: int | None
    total_bytes: int | None
    failing: dict[str, str]
    kind: Literal["looked"] = "looked"
