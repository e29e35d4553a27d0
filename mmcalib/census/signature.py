"""What decides a prompt's cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmcalib.domain.asked import Asked
from mmcalib.domain.shapes import Modality, Shape


@dataclass(frozen=True, slots=True)
class PromptSignature:
    """What decides a prompt's cost: the shapes of its items, sorted, its characters of text, and
    what it asks of the context.
    """

    shapes: tuple[Shape, ...]
    text_chars: int
    asked: Asked = field(default_factory=Asked)

    def items(self, modality: Modality) -> int:
        """How many of its items are of `modality`."""
        return sum(shape.modality == modality for shape in self.shapes)

    def within(self, counts: Mapping[Modality, int]) -> bool:
        """Whether it carries no more items of any of the modalities."""
        return all(self.items(modality) <= most for modality, most in counts.items())
