"""vLLM's own count of many items of one modality, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmcalib.derive.sampled import sampled_tuples, widened
from mmcalib.domain.shape_columns import Column, Shapes

# Stands for parts that are not known.
_NONE = -1


@dataclass(frozen=True, slots=True)
class VllmCount:
    """Embeds by vLLM's own count, what its loader would sample, and of how many parts its tensors
    are where that is known: tiles of an image that is cut by a list of resolutions, frames of a
    sound's features.
    """

    embeds: int
    sampled: tuple[int, ...]
    parts: int | None = None


@dataclass(frozen=True, eq=False)
class VllmCounts:
    """A row for each shape that vLLM counts, ascending. `parts` are -1 where they are not known."""

    shapes: Shapes
    embeds: Column
    sampled: Column
    parts: Column

    @classmethod
    def joined(cls, parts: Sequence[VllmCounts], of: Shapes) -> VllmCounts:
        """Each part ascending behind the one before, of some or all of these shapes."""
        width = max(part.sampled.shape[1] for part in parts)
        whole = sum(map(len, parts)) == len(of)
        return cls(
            of if whole else Shapes.joined([part.shapes for part in parts]),
            np.concatenate([part.embeds for part in parts]),
            np.concatenate([widened(part.sampled, width) for part in parts]),
            np.concatenate([part.parts for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.embeds)

    def __getitem__(self, row: int) -> VllmCount:
        (sampled,) = sampled_tuples(self.sampled[row : row + 1])
        parts = int(self.parts[row])
        return VllmCount(int(self.embeds[row]), sampled, None if parts == _NONE else parts)

    def take(self, rows: Column) -> VllmCounts:
        """These rows, by ascending places."""
        if len(rows) == len(self):
            return self
        return VllmCounts(
            self.shapes.take(rows), self.embeds[rows], self.sampled[rows], self.parts[rows]
        )
