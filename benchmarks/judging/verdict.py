"""What the two answers mean together, and which disagreements are one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Agreed = Literal["served", "served again", "refused", "refused by 5xx", "unknown"]
Disagreed = Literal["broken promise", "failure", "wrong count", "false refusal"]
Kind = Agreed | Disagreed
KINDS: tuple[Kind, ...] = (*get_args(Agreed), *get_args(Disagreed))

_BOUND = re.compile(r"(at most )?(\d+) tokens of media \+ (at most )?(\d+) of text")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{16,}\b|\d[\d,.]*")
_PATHS = re.compile(r"(/[\w.+-]+){2,}|(image|video|audio)-?[\w.+-]*\.\w+")
_NAMED_CHARS = 130


@dataclass(frozen=True, slots=True)
class Verdict:
    """One request's: `answer` and `reason` are `check`'s, `status`, `said` and `prompt_tokens` the
    server's, and `again` its status when what it had failed at was sent once more.
    """

    answer: str
    reason: str
    status: int
    said: str
    again: int | None = None
    prompt_tokens: int | None = None

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
            if served and self.is_miscounted:
                return "wrong count"
            return "served" if served else "broken promise"
        return "false refusal" if served else "refused"

    @property
    def is_miscounted(self) -> bool:
        """The server counts more than the bound of `check`, or other than its exact number."""
        if self.prompt_tokens is None or not (bound := _BOUND.match(self.reason)):
            return False
        media_at_most, media, text_at_most, text = bound.groups()
        more = self.prompt_tokens - int(media) - int(text)
        return more > 0 or (more < 0 and not (media_at_most or text_at_most))

    @property
    def disagrees(self) -> bool:
        return self.kind in get_args(Disagreed)

    @property
    def cause(self) -> str:
        """The same for what is likely one fault: the words without their figures and names."""
        # What `check` refuses and the server serves only `check` has words for, and the other way
        # round.
        words = (
            self.reason if self.kind in ("false refusal", "unknown", "wrong count") else self.said
        )
        bare = _NUMBERS.sub("N", _PATHS.sub("FILE", " ".join(words.split())))
        return f"{self.kind}: {bare[:_NAMED_CHARS]}"
