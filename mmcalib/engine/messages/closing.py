"""What ends a request, or says how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Said:
    """A word on how far the request is: shown beside the progress bar."""

    text: str
    kind: Literal["said"] = "said"


@dataclass(frozen=True, slots=True)
class Done:
    """The request is finished and has no other closing reply."""

    kind: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed; `error` is vLLM's own message on one line, `where` its exception."""

    error: str
    where: str
    kind: Literal["failed"] = "failed"
