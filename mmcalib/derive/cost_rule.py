"""What an item costs by its count alone: a rule that every processed item has to bear out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mmcalib.derive.vllm_counts import VllmCount, VllmCounts
from mmcalib.domain.cost import Cost
from mmcalib.domain.shape_columns import Column

# A number by the embeds of an item, None where nothing says what it is.
Follows = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class CostRule:
    """`text` are the tokens beside the embeds, `nbytes` those of the processed tensors, by the
    embeds or, where `by_tiles`, by the tiles; both as every witness has them. Seconds are in
    proportion to the embeds.
    """

    text: Follows
    nbytes: Follows
    seconds_per_embed: float
    by_tiles: bool = False

    def cost(self, counted: VllmCount) -> Cost | None:
        """None where the witnesses do not tell."""
        embeds = counted.embeds
        key = counted.tiles if self.by_tiles else embeds
        text, nbytes = self.text(embeds), None if key is None else self.nbytes(key)
        if text is None or nbytes is None:
            return None
        seconds = self.seconds_per_embed * embeds
        return Cost(embeds + text, embeds, nbytes, 0.0, seconds, counted.sampled)

    def columns(self, counts: VllmCounts) -> tuple[Column, Column]:
        """Text and bytes of each, as in `cost`; -1 where the witnesses do not tell."""
        keys = counts.tiles if self.by_tiles else counts.embeds
        return _each(self.text, counts.embeds), _each(self.nbytes, keys)


def cost_rule(witnesses: Sequence[tuple[VllmCount, Cost]]) -> CostRule | None:
    """The rule of all these; None where one contradicts another."""
    costs = [cost for _, cost in witnesses]
    embeds = sum(cost.embeds for cost in costs)
    text = follows((cost.embeds, cost.tokens - cost.embeds) for cost in costs)
    if text is None or not embeds:
        return None
    each = sum(cost.load_s + cost.process_s for cost in costs) / embeds
    if nbytes := follows((cost.embeds, cost.tensor_bytes) for cost in costs):
        return CostRule(text, nbytes, each)
    cut = [(c.tiles, cost.tensor_bytes) for c, cost in witnesses if c.tiles is not None]
    if len(cut) < len(witnesses) or not (nbytes := follows(cut)):
        return None
    return CostRule(text, nbytes, each, by_tiles=True)


def _each(rule: Follows, keys: Column) -> Column:
    every, rows = np.unique(keys, return_inverse=True)
    found = (rule(key) for key in every.tolist())
    return np.array([-1 if one is None else one for one in found], dtype=np.int64)[rows]


def follows(pairs: Iterable[tuple[int, int]]) -> Follows | None:
    """How the second number follows from the first: along a straight line, or as that of a pair
    with the same first. None where equal ones have unequal seconds.
    """
    known: dict[int, int] = {}
    for first, second in pairs:
        if known.setdefault(first, second) != second:
            return None
    if not known:
        return None
    low, high = min(known), max(known)
    run, rise = high - low, known[high] - known[low]
    if len(known) > 2 and all((v - known[low]) * run == (e - low) * rise for e, v in known.items()):
        return lambda embeds: _on_line(embeds, low, known[low], run, rise)
    return known.get


def _on_line(embeds: int, low: int, start: int, run: int, rise: int) -> int | None:
    """Only between the ends, and where it is a whole number."""
    if not low <= embeds <= low + run:
        return None
    value, rest = divmod((embeds - low) * rise, run)
    return None if rest else start + value
