"""What stand-ins cost: some processed, the others by vLLM's own count where these prove it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mmcalib.derive.cost_rule import cost_rule
from mmcalib.derive.costs import CostTable
from mmcalib.derive.counted import Counts, VllmCount, changed
from mmcalib.derive.witnesses import WITNESSES, WITNESSES_AGAIN, witnesses
from mmcalib.domain.cost import Cost
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import MODALITIES, Modality, Shape, weight
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
    """An answer of each shape. Those that are `counted` were not processed: `witnesses` of their
    modality were, and cost what vLLM counts.
    """

    answers: dict[Shape, Measured] = field(default_factory=dict)
    counted: set[Shape] = field(default_factory=set)
    witnesses: dict[Modality, int] = field(default_factory=dict)


def stand_ins(
    host: EngineHost,
    setting: Setting,
    shapes: Iterable[Shape],
    task: Task,
    before: CostTable | None = None,
) -> StandIns:
    """What each shape costs under the setting; `before` is what they cost under another."""
    every, found = list(shapes), StandIns()
    for modality in MODALITIES:
        mine = [shape for shape in every if shape.modality == modality]
        if len(mine) > _WORTH_COUNTING and (counts := count(host, setting, mine)):
            _by_count(host, setting, counts, found, task, _proven(before, modality))
        _process(host, setting, [s for s in mine if s not in found.answers], found, task)
    # In the order of the corpus.
    found.answers = {shape: found.answers[shape] for shape in every}
    return found


def _proven(before: CostTable | None, modality: Modality) -> CostTable | None:
    return before if before is not None and modality in before.witnesses else None


def _by_count(
    host: EngineHost,
    setting: Setting,
    counts: Counts,
    found: StandIns,
    task: Task,
    before: CostTable | None,
) -> None:
    """The witnesses are processed, all else is counted; nothing is where one witness is not as
    counted. What this machine has no memory for, and what is as large, proves nothing. Where the
    count was proven `before`, few are needed of what this setting leaves alone.
    """
    same: Counts = {}
    if before is not None:
        kept = [before.costs[shape] for shape in counts if shape in before.costs]
        moved = {one.shape for one in changed(counts, kept)}
        same = {one.shape: counts[one.shape] for one in kept if one.shape not in moved}
    others = {shape: counted for shape, counted in counts.items() if shape not in same}
    chosen = [*witnesses(others), *witnesses(same, WITNESSES_AGAIN)]
    _process(host, setting, chosen, found, task)
    answers = [(shape, found.answers[shape]) for shape in chosen]
    too_large = [weight(s) for s, answer in answers if answer.refused_by == "host_memory"]
    proof = [(s, a.cost) for s, a in answers if a.refused_by != "host_memory"]
    borne_out = [(counts[s], cost) for s, cost in proof if cost and _as_counted(cost, counts[s])]
    rule = cost_rule(borne_out) if len(borne_out) == len(proof) else None
    if rule is None:
        return
    for shape, counted in counts.items():
        if shape in found.answers or (too_large and weight(shape) >= min(too_large)):
            continue
        cost = rule.cost(counted)
        if cost is not None:
            found.answers[shape] = Measured(len(found.answers), cost)
            found.counted.add(shape)
            task.advance()
    found.witnesses[chosen[0].modality] = len(borne_out)


def _as_counted(cost: Cost, counted: VllmCount) -> bool:
    return (cost.embeds, cost.sampled) == (counted.embeds, counted.sampled)


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


def count(host: EngineHost, setting: Setting, shapes: Sequence[Shape]) -> Counts:
    """By vLLM's code, of the shapes that it counts; none where it has no count of the modality."""
    found: dict[Shape, VllmCount] = {}
    for start in range(0, len(shapes), _AT_A_TIME):
        some = shapes[start : start + _AT_A_TIME]
        blanks = tuple(Blank(shape) for shape in some)
        try:
            answer = host.ask(CountEmbeds(setting, blanks), "counting")
        except (VllmMoved, VllmRefused):
            return {}
        parts = answer.parts or (None,) * len(some)
        counted = zip(answer.embeds, answer.sampled, parts, strict=True)
        for shape, (embeds, sampled, of) in zip(some, counted, strict=True):
            if embeds is not None:
                found[shape] = VllmCount(embeds, sampled, of)
        if not found:
            return {}
    return found
