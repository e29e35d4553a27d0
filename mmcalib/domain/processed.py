"""What a processor makes of an item on a device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class Processed:
    """One item, without its loading: `tensors` are the name, type and shape of each. `peak_bytes`
    of the device are above what was held before; None on one that has no memory of its own.
    """

    tokens: int
    embeds: int
    tensors: tuple[str, ...]
    seconds: float
    peak_bytes: int | None

    def difference(self, other: Processed, device: str) -> str:
        """The first thing that the other, of `device`, has otherwise; empty without any."""
        ours = (f"{self.tokens} tokens", f"{self.embeds} embeds", *self.tensors)
        theirs = (f"{other.tokens} tokens", f"{other.embeds} embeds", *other.tensors)
        for one, two in zip_longest(ours, theirs, fillvalue="nothing more"):
            if one != two:
                return f"{one} on the CPU, {two} on {device}"
        return ""
