"""What stand-ins cost: some processed, the others by vLLM's own count where these prove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mmcalib.derive.costs import CostColumns, integers, sampled_rows
from mmcalib.derive.counting import (
    WITNESSES,
    WITNESSES_AGAIN,
    VllmCounts,
    as_counted,
    cost_rule,
    witnesses,
)
from mmcalib.derive.item_cost import Basis, ItemCost
from mmcalib.domain.cost import Cost
from mmcalib.domain.setting import Setting
from mmcalib.domain.shape_columns import Column, Shapes
from mmcalib.domain.shape_counts import ShapeCounts
from mmcalib.domain.shapes import Modality, Shape, weight
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, CountEmbeds, Measure, Measured
from mmcalib.errors import VllmMoved, VllmRefused
from mmcalib.progress import Task

# Of fewer shapes all are processed: that takes no longer than the proof.
_WORTH_COUNTING = 2 * WITNESSES
# Shapes per question to vLLM's count: a word is heard from the child between two.
_AT_A_TIME = 20_000


@dataclass(slots=True)
class StandIns:
    """What each shape costs, without those that are refused. Those with an answer were processed;
    the others cost what vLLM counts, as so many `witnesses` of their modality do.
    """

    costs: dict[Modality, CostColumns] = field(default_factory=dict)
    answers: dict[Shape, Measured] = field(default_factory=dict)
    witnesses: dict[Modality, int] = field(default_factory=dict)


def stand_ins(
    host: EngineHost,
    setting: Setting,
    shapes: Mapping[Modality, ShapeCounts],
    task: Task,
    before: Mapping[Modality, CostColumns],
) -> StandIns:
    """What each shape costs under the setting; `before` is what they cost under another where the
    count was proven.
    """
    found = StandIns()
    for modality, mine in shapes.items():
        costs, left = CostColumns.waiting(mine), np.ones(len(mine), dtype=bool)
        if len(mine) > _WORTH_COUNTING and (counts := count(host, setting, mine.shapes)):
            usual = before.get(modality)
            costs, left = _by_count(host, setting, costs, counts, found, task, usual)
        rest = [s for s in mine.shapes.take(np.flatnonzero(left)) if s not in found.answers]
        _process(host, setting, rest, found, task)
        found.costs[modality] = costs.but(_answered(found.answers, mine))
    return found


def _answered(
    answers: Mapping[Shape, Measured], entries: ShapeCounts
) -> dict[Shape, ItemCost | None]:
    """What was processed of these."""
    found: dict[Shape, ItemCost | None] = {}
    for shape, answer in answers.items():
        if shape.modality != entries.shapes.modality:
            continue
        entry = entries.of(shape)
        found[shape] = (
            item_cost(shape, entry.count, entry.exemplars[0], answer.cost, "blank")
            if answer.cost
            else None
        )
    return found


def item_cost(shape: Shape, count: int, exemplar: str, cost: Cost, basis: Basis) -> ItemCost:
    """The cost of each of `count` items."""
    return ItemCost(
        shape,
        count,
        exemplar,
        cost.tokens,
        cost.embeds,
        cost.tensor_bytes,
        cost.load_s + cost.process_s,
        cost.sampled,
        basis,
        cost.cpu_s if basis == "real" else 0.0,
    )


def _by_count(
    host: EngineHost,
    setting: Setting,
    costs: CostColumns,
    counts: VllmCounts,
    found: StandIns,
    task: Task,
    before: CostColumns | None,
) -> tuple[CostColumns, Column]:
    """The costs by count, and which rows are still to be processed.

    The witnesses are processed, all else is counted; nothing is where one witness is not as
    counted. What this machine has no memory for, and what is as large, proves nothing. Where the
    count was proven `before`, few are needed of what this setting leaves alone.
    """
    same = np.zeros(len(counts), dtype=bool)
    if before is not None:
        kept = before.shapes.take(np.flatnonzero(as_counted(counts, before)))
        same[counts.shapes.places(kept)] = True
    chosen = witnesses(counts.take(np.flatnonzero(~same)))
    chosen += witnesses(counts.take(np.flatnonzero(same)), WITNESSES_AGAIN)
    _process(host, setting, chosen, found, task)
    answers = [(shape, found.answers[shape]) for shape in chosen]
    too_large = [weight(s) for s, answer in answers if answer.refused_by == "host_memory"]
    rows = counts.shapes.places(chosen).tolist()
    proof = [
        (counts[row], answer.cost)
        for row, (_, answer) in zip(rows, answers, strict=True)
        if answer.refused_by != "host_memory"
    ]
    borne_out = [(c, cost) for c, cost in proof if cost and _as_counted(cost, c.embeds, c.sampled)]
    rule = cost_rule(borne_out) if len(borne_out) == len(proof) else None
    left = np.ones(len(costs), dtype=bool)
    if rule is None:
        return costs, left
    text, nbytes = rule.columns(counts)
    known = (text >= 0) & (nbytes >= 0) & ~np.isin(np.arange(len(counts)), rows)
    if too_large:
        known &= counts.shapes.weights() < min(too_large)
    embeds, places = counts.embeds[known], costs.shapes.places(counts.shapes)[known]
    left[places] = False
    task.advance(len(places))
    found.witnesses[costs.modality] = len(borne_out)
    counted = costs.counted(
        places,
        tokens=embeds + text[known],
        embeds=embeds,
        tensor_bytes=nbytes[known],
        process_s=rule.seconds_per_embed * embeds,
        sampled=counts.sampled[known],
    )
    return counted, left


def _as_counted(cost: Cost, embeds: int, sampled: tuple[int, ...]) -> bool:
    return (cost.embeds, cost.sampled) == (embeds, sampled)


def _process(
    host: EngineHost, setting: Setting, shapes: Sequence[Shape], found: StandIns, task: Task
) -> None:
    if not shapes:
        return
    subjects = tuple(Blank(shape) for shape in shapes)
    answers = host.measure(Measure(setting, subjects), "measuring costs")
    for shape, answer in zip(shapes, answers, strict=True):
        found.answers[shape] = answer
        task.advance()


def count(host: EngineHost, setting: Setting, shapes: Shapes) -> VllmCounts | None:
    """By vLLM's code, of the shapes that it counts; None where it has no count of them."""
    parts = []
    for start in range(0, len(shapes), _AT_A_TIME):
        some = shapes[start : start + _AT_A_TIME]
        try:
            answer = host.ask(CountEmbeds(setting, tuple(map(Blank, some))), "counting")
        except (VllmMoved, VllmRefused):
            return None
        embeds = integers(-1 if one is None else one for one in answer.embeds)
        of = answer.parts or (None,) * len(some)
        parts_of = integers(-1 if one is None else one for one in of)
        counted = VllmCounts(some, embeds, sampled_rows(answer.sampled), parts_of)
        parts.append(counted.take(np.flatnonzero(embeds >= 0)))
        if not any(map(len, parts)):
            return None
    return VllmCounts.joined(parts, shapes) if parts else None
