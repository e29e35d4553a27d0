"""Made-up items where the corpus' own do not fill the worst step that the scheduler may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from mmcalib.derive.costs import CostTable
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.limits import Count
from mmcalib.domain.shape_columns import Column, Shapes
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import ReplayPrompt
from mmcalib.media.blank import write_blank
from mmcalib.workflows.proof.burst import Burst, prompt_of

# Files to write: enough of large items; a step of small ones proves little more.
_MOST: Final = 64
# Frames of a video to write; longer ones take longer to make than to encode.
_MOST_FRAMES: Final = 300


def filled(
    chosen: Burst,
    table: CostTable,
    counts: Mapping[Modality, Count],
    step_tokens: int,
    affordable_tokens: float,
    folder: Path,
) -> Burst:
    """The burst, with blank items of the corpus' shapes, costliest first, until it holds what one
    step may encode, within `affordable_tokens`. Their files are written into `folder`.
    """
    tokens, smallest = chosen.encoder_tokens, 0
    made: list[tuple[ReplayPrompt, int]] = []
    for cost in _copyable(table, counts):
        smallest = cost.embeds
        while tokens + cost.embeds <= min(step_tokens, affordable_tokens) and len(made) < _MOST:
            folder.mkdir(parents=True, exist_ok=True)
            path = write_blank(cost.shape, len(made), folder)
            made.append((prompt_of(replace(cost, exemplar=str(path))), cost.embeds))
            tokens += cost.embeds
    return replace(
        chosen,
        prompts=(*chosen.prompts, *(prompt for prompt, _ in made)),
        embeds=(*chosen.embeds, *(embeds for _, embeds in made)),
        # No item is split between steps, so a rest smaller than any item stays empty.
        fills_step=tokens + smallest > step_tokens or not (smallest or chosen.admit),
        made_up=len(made),
    )


def _copyable(table: CostTable, counts: Mapping[Modality, Count]) -> list[ItemCost]:
    """One cost of each size whose blank costs what the real item does and can be written."""
    by_size: dict[int, ItemCost] = {}
    for modality in table.modalities():
        if counts[modality].value:
            costs = table.of(modality)
            costs = costs.take(_can_be_written(costs.shapes))
            costs = costs.but({mismatch.shape: None for mismatch in table.mismatches})
            _, first = np.unique(costs.embeds, return_index=True)
            by_size |= {cost.embeds: cost for cost in costs.take(np.sort(first))}
    return [by_size[embeds] for embeds in sorted(by_size, reverse=True)]


def _can_be_written(shapes: Shapes) -> Column:
    if shapes.modality != "video":
        return shapes.mask(True)
    sides = shapes.columns["width_px"] | shapes.columns["height_px"]
    timed, frames = shapes.columns["fps"] > 0, shapes.columns["num_frames"]
    found: Column = (sides % 2 == 0) & timed & (frames <= _MOST_FRAMES)
    return found
