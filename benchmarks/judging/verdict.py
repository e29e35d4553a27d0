"""What the two answers mean together, and which disagreements are one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Agreed = Literal["served", "served again", "refused", "refused by 5xx", "unknown"]
Disagreed = Literal["broken promise", "failure", "false refusal"]
Kind = Agreed | Disagreed
KINDS: tuple[Kind, ...] = (*get_args(Agreed), *get_args(Disagreed))

_NUMBERS = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{16,}\b|\d[\d,.]*")
_PATHS = re.compile(r"(/[\w.+-]+){2,}|(image|video|audio)-?[\w.+-]*\.\w+")
_NAMED_CHARS = 130


@dataclass(frozen=True, slots=True)
class Verdict:
    """One request's: `answer` and `reason` are `check`'s, `status` and `said` the server's, and
    `again` its status when what it had failed at was sent once more.
    """

    answer: str
    reason: str
    status: int
    said: str
    again: int | None = None

    @property
    def kind(self) -> Kind:
        if self.status >= 500 and self.answer != "fits":
            # `check` has not let it in; that vLLM calls it a fault of its own is vLLM's.
            return "refused by 5xx" if self.answer == "no" else "unknown"
        if self.status == 0 or self.status >= 500:
            return "served again" if self.again == 200 else "failure"
        served = self.status == 200
        if self.answer == "unknown":
            return "unknown"
        if self.answer == "fits":
            return "served" if served else "broken promise"
        return "false refusal" if served else "refused"

    @property
    def disagrees(self) -> bool:
        return self.kind in get_args(Disagreed)

    @property
    def cause(self) -> str:
        """The same for what is likely one fault: the words without their figures and names."""
        # What `check` refuses and the server serves only `check` has words for, and the other way
        # round.
        words = self.reason if self.kind in ("false refusal", "unknown") else self.said
        bare = _NUMBERS.sub("N", _PATHS.sub("FILE", " ".join(words.split())))
        return f"{self.kind}: {bare[:_NAMED_CHARS]}"
