"""What new data was checked, and the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mmcalib.derive.admission import Admission, Answer
from mmcalib.domain.shapes import Shape


@dataclass(frozen=True, slots=True)
class Checked:
    """One item or prompt and the answer. `origin` is the item's path, or where the prompt stands;
    `shapes` are empty where nothing could be read.
    """

    origin: str
    kind: Literal["item", "prompt"]
    shapes: tuple[Shape, ...]
    admission: Admission


@dataclass(slots=True)
class Tally:
    """How many of each answer; `skipped` were no media and lay in a folder."""

    answers: dict[Answer, int] = field(default_factory=lambda: {"fits": 0, "no": 0, "unknown": 0})
    skipped: int = 0

    @property
    def checked(self) -> int:
        return sum(self.answers.values())

    def offenders(self, *, allow_unknown: bool) -> int:
        """How many keep the data from fitting."""
        return self.answers["no"] + (0 if allow_unknown else self.answers["unknown"])
