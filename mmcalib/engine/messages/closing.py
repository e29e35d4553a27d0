"""What ends a request, or says how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmcalib.engine.messages.message import Interim, Reply

FailureKind = Literal["vllm", "not_multimodal", "not_installed", "moved"]


@dataclass(frozen=True, slots=True)
class Said(Interim):
    """A word on how far the request is: shown beside the progress bar."""

    text: str


@dataclass(frozen=True, slots=True)
class Done(Reply):
    """The request is finished and has no other closing reply."""


@dataclass(frozen=True, slots=True)
class Failed(Reply):
    """The request failed; `error` is vLLM's own message on one line. `exhausted` names what the
    child's machine ran out of, where that is why.
    """

    error: str
    kind: FailureKind = "vllm"
    exhausted: str = ""
