"""Cost every shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mmcalib.census.census import Census, shape_order
from mmcalib.decision.media_files import Files, files
from mmcalib.derive import counting
from mmcalib.derive.costs import (
    Basis,
    CostColumns,
    CostMap,
    CostTable,
    ItemCost,
    Mismatch,
    Refusal,
    Resampled,
)
from mmcalib.derive.counting import (
    SPOTS,
    WITNESSES,
    WITNESSES_AGAIN,
    VllmCounts,
    as_counted,
    cost_rule,
    witnesses,
)
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import Cost
from mmcalib.domain.shape_columns import Column, ShapeCount, ShapeCounts, Shapes
from mmcalib.domain.shapes import Modality, Shape, weight
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, CountEmbeds, File, Measure, Measured
from mmcalib.errors import EngineDied, VllmMoved, VllmRefused
from mmcalib.progress import Progress, Task

# Of fewer shapes all are processed: that takes no longer than the proof.
_WORTH_COUNTING = 2 * WITNESSES
# Shapes per question to vLLM's count: a word is heard from the child between two.
_AT_A_TIME = 20_000


@dataclass(slots=True)
class StandIns:
    """What each shape costs, without those that are refused. Those with an answer were processed;
    the others cost what vLLM counts, as so many `witnesses` of their modality do.
    """

    host: EngineHost
    setting: Setting
    task: Task
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
    """What each shape costs under the setting; `before`: under one whose count was proven."""
    found = StandIns(host, setting, task)
    for modality, mine in shapes.items():
        costs, left = CostColumns.waiting(mine), np.ones(len(mine), dtype=bool)
        if len(mine) > _WORTH_COUNTING and (counts := count(host, setting, mine.shapes)):
            costs, left = _by_count(found, costs, counts, before.get(modality))
        rest = [s for s in mine.shapes.take(np.flatnonzero(left)) if s not in found.answers]
        _process(found, rest)
        found.costs[modality] = costs.but(_answered(found.answers, mine))
    return found


def _answered(
    answers: Mapping[Shape, Measured], entries: ShapeCounts
) -> dict[Shape, ItemCost | None]:
    found: dict[Shape, ItemCost | None] = {}
    for shape, answer in answers.items():
        if shape.modality == entries.shapes.modality:
            entry = entries.of(shape)
            taken = shape, entry.count, entry.exemplars[0]
            found[shape] = item_cost(*taken, answer.cost, "blank") if answer.cost else None
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
    found: StandIns, costs: CostColumns, counts: VllmCounts, before: CostColumns | None
) -> tuple[CostColumns, Column]:
    """The costs by count, and which rows are still to be processed: all where one witness is not as
    counted. What this machine has no memory for proves nothing, nor what is as large. Where the
    count was proven `before`, few are needed of what this setting leaves alone.
    """
    same = np.zeros(len(counts), dtype=bool)
    if before is not None:
        kept = before.shapes.take(np.flatnonzero(as_counted(counts, before)))
        same[counts.shapes.places(kept)] = True
    chosen = witnesses(counts.take(np.flatnonzero(~same)))
    chosen += witnesses(counts.take(np.flatnonzero(same)), WITNESSES_AGAIN)
    _process(found, chosen)
    answers = [(shape, found.answers[shape]) for shape in chosen]
    too_large = [weight(s) for s, answer in answers if answer.refused_by == "host_memory"]
    rows = counts.shapes.places(chosen).tolist()
    proof = [
        (counts[row], answer.cost)
        for row, (_, answer) in zip(rows, answers, strict=True)
        if answer.refused_by != "host_memory"
    ]
    borne_out = [
        (c, cost)
        for c, cost in proof
        if cost and (cost.embeds, cost.sampled) == (c.embeds, c.sampled)
    ]
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
    found.task.advance(len(places))
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


def _process(found: StandIns, shapes: Sequence[Shape]) -> None:
    if not shapes:
        return
    subjects = tuple(Blank(shape) for shape in shapes)
    answers = found.host.measure(Measure(found.setting, subjects), "measuring costs")
    for shape, answer in zip(shapes, answers, strict=True):
        found.answers[shape] = answer
        found.task.advance()


def count(host: EngineHost, setting: Setting, shapes: Shapes) -> VllmCounts | None:
    """By vLLM's code, of the shapes that it counts; None where it has no count of them."""
    parts = []
    for start in range(0, len(shapes), _AT_A_TIME):
        some = shapes[start : start + _AT_A_TIME]
        try:
            answer = host.ask(CountEmbeds(setting, tuple(map(Blank, some))), "counting")
        except (VllmMoved, VllmRefused):
            return None
        of = answer.parts or (None,) * len(some)
        parts.append(VllmCounts.of(some, answer.embeds, answer.sampled, of))
        if not any(map(len, parts)):
            return None
    return VllmCounts.joined(parts, shapes) if parts else None


Sample = Sequence[tuple[Shape, str]]

# An engine takes seconds to begin. More media than this are no accident.
_MOST_DEATHS = 3


def measure(
    host: EngineHost,
    census: Census,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = files,
    before: CostTable | None = None,
) -> tuple[CostTable, list[Skipped]]:
    """Cost every shape by a blank, and every sampled file and the costliest by itself; the real one
    wins. `before` is the table of another setting. A sampled item that cannot be had or loaded is
    returned as skipped; of one out of reach the blank counts.
    """
    counts = {modality: census.counts(modality) for modality in census.modalities()}
    usual = {m: before.of(m) for m in before.witnesses} if before is not None else {}
    shapes = sum(map(len, counts.values()))
    with progress.step("measuring costs", shapes + len(sample)) as task:
        blanks = stand_ins(host, setting, counts, task, usual)
        # Where memory is lacking for the stand-in, the real one would take as much.
        lacking = {s for s, found in blanks.answers.items() if found.refused_by == "host_memory"}
        safe = [one for one in sample if one[0] not in lacking]
        costs = [costs for costs in blanks.costs.values() if costs]
        costliest = [mine[int(mine.embeds.argmax())] for mine in costs]
        known = {shape for shape, _ in safe}
        chosen = [*safe, *((c.shape, c.exemplar) for c in costliest if c.shape not in known)]
        found = files([(shape.modality, path) for shape, path in chosen])
        given = dict(zip(chosen, found, strict=True))
        good = {one: file for one, file in given.items() if isinstance(file, str)}
        bad = {one: file for one, file in given.items() if isinstance(file, Skipped)}
        first = _lightest(list(good))
        task.total(shapes + len(first) + len(good))
        subjects = [File(one[0].modality, good[one]) for one in (*first, *good)]
        answers = _ask_of_files(host, setting, subjects, task)[len(first) :]
        real: list[tuple[tuple[Shape, str], Measured | Skipped]] = [
            *zip(good, answers, strict=True),
            *bad.items(),
        ]
    return _table(setting, counts, blanks, real)


def _ask_of_files(
    host: EngineHost, setting: Setting, subjects: Sequence[File], task: Task
) -> list[Measured]:
    """Each file's answer, also for one that ends the engine. Raises EngineDied where several do."""
    answers: list[Measured] = []
    for _ in range(_MOST_DEATHS):
        try:
            request = Measure(setting, tuple(subjects[len(answers) :]))
            for answer in host.measure(request, "measuring costs"):
                task.advance()
                # Those before a death count.
                answers.append(answer)
        except EngineDied as error:
            if len(answers) == len(subjects):
                raise
            last = error
            answers.append(Measured(len(answers), None, refusal=error.message))
            host.revive()
        else:
            return answers
    raise last


def _lightest(chosen: Sample) -> Sample:
    """One of each modality to load before others are timed: the first pays for imports."""
    lightest: dict[Modality, tuple[Shape, str]] = {}
    for shape, path in sorted(chosen, key=lambda one: weight(one[0])):
        lightest.setdefault(shape.modality, (shape, path))
    return list(lightest.values())


def remeasure(
    host: EngineHost, default: CostTable, setting: Setting, changed: Iterable[Shape]
) -> CostTable:
    """The default's table with the shapes that a cap may change measured anew, by stand-ins."""
    asked, of = set(changed), [default.of(modality) for modality in default.modalities()]
    anew = [s for mine in of for s in sorted(s for s in asked if s in mine.shapes)]
    subjects = tuple(Blank(shape) for shape in anew)
    answers = host.measure(Measure(setting, subjects), "measuring a setting") if anew else ()
    usual, found = default.costs, dict[Shape, ItemCost | None]()
    refusals = list(default.refusals)
    for shape, answer in zip(anew, answers, strict=True):
        before, found[shape] = usual[shape], None
        if answer.cost is None:
            refusals.append(_refusal(shape, before.count, before.exemplar, answer))
        else:
            taken = shape, before.count, before.exemplar
            found[shape] = item_cost(*taken, answer.cost, "blank")
    columns = {mine.modality: _but(mine.unchanged(), found) for mine in of}
    return CostTable(setting, columns, tuple(refusals))


def _but(costs: CostColumns, found: Mapping[Shape, ItemCost | None]) -> CostColumns:
    return costs.but({s: cost for s, cost in found.items() if s.modality == costs.modality})


def _refusal(shape: Shape, count: int, exemplar: str, answer: Measured) -> Refusal:
    return Refusal(shape, count, exemplar, answer.refusal, answer.refused_by)


def _table(
    setting: Setting,
    counts: Mapping[Modality, ShapeCounts],
    blanks: StandIns,
    real: Iterable[tuple[tuple[Shape, str], Measured | Skipped]],
) -> tuple[CostTable, list[Skipped]]:
    mismatches: list[Mismatch] = []
    resampled: list[Resampled] = []
    unreadable: list[Skipped] = []
    failed: dict[Modality, int] = {}
    costs, changed = CostMap(blanks.costs), dict[Shape, ItemCost | None]()
    compared = out_of_reach = 0
    for (shape, path), found in real:
        blank = changed.get(shape, costs.get(shape))
        if isinstance(found, Skipped) and found.out_of_reach:
            out_of_reach += 1
            continue
        if isinstance(found, Skipped):
            unreadable.append(found)
            if blank is not None:
                changed[shape] = _one_fewer(blank, path, counts[shape.modality].of(shape))
            continue
        if found.cost is None:
            if blank is not None:
                failed[shape.modality] = failed.get(shape.modality, 0) + 1
                unreadable.append(Skipped(path, f"vLLM cannot load it: {found.refusal}"))
                changed[shape] = _one_fewer(blank, path, counts[shape.modality].of(shape))
            continue
        count = counts[shape.modality].of(shape).count
        changed[shape] = item_cost(shape, count, path, found.cost, "real")
        compared += 1
        if found.resampled:
            resampled.append(Resampled(path, *found.resampled))
        if blank is None or (blank.tokens, blank.embeds) != (found.cost.tokens, found.cost.embeds):
            mismatches.append(_mismatch(shape, path, found.cost, blank))
    taken = {shape for shape, cost in changed.items() if cost is not None}
    refusals = []
    for shape, answer in blanks.answers.items():
        if answer.cost is None and shape not in taken:
            entry = counts[shape.modality].of(shape)
            refusals.append(_refusal(shape, entry.count, entry.exemplars[0], answer))
    refusals.sort(key=lambda refusal: shape_order(refusal.shape))
    table = CostTable(
        setting,
        {modality: _but(mine, changed) for modality, mine in blanks.costs.items()},
        tuple(refusals),
        tuple(mismatches),
        compared,
        failed,
        blanks.witnesses,
        out_of_reach,
        tuple(resampled),
    )
    return table, unreadable


def _one_fewer(blank: ItemCost, path: str, entry: ShapeCount) -> ItemCost | None:
    """One file fewer of this shape; the shape goes when it was the only one."""
    others = [exemplar for exemplar in entry.exemplars if exemplar != path]
    if blank.count <= 1 or not others:
        return None
    return replace(blank, count=blank.count - 1, exemplar=others[0])


def _mismatch(shape: Shape, path: str, real: Cost, blank: ItemCost | None) -> Mismatch:
    if blank is None:
        return Mismatch(path, shape, real.tokens, 0, "a blank of its shape was refused")
    why = f"loaded as {_words(real.sampled)}, the header promised {_words(blank.sampled)}"
    if real.sampled == blank.sampled:
        why = "the same size, other content"
    return Mismatch(path, shape, real.tokens, blank.tokens, why)


def _words(sampled: tuple[int, ...]) -> str:
    return "×".join(str(number) for number in sampled)


# Shapes that a value should leave alone, and that are counted under it all the same.
_SURE = 1_000


@dataclass(frozen=True, slots=True)
class EmbedCounter:
    """vLLM's proven count of one modality's items, whose costs by default are `usual`."""

    host: EngineHost
    default: CostTable
    usual: CostColumns

    @classmethod
    def proven(
        cls, host: EngineHost, default: CostTable, modality: Modality
    ) -> EmbedCounter | None:
        """None where the count is missing, wrong or not needed; misnamed items prove nothing."""
        costs = default.of(modality)
        costs = costs.but({one.shape: None for one in default.mismatches})
        if len(costs) <= SPOTS:
            return None
        if modality not in default.witnesses:
            found = count(host, default.setting, costs.shapes)
            if found is None or not counting.reproduces(found, costs):
                return None
        return cls(host, default, costs)

    def under(self, setting: Setting, touched: Column) -> CostTable | None:
        """The costs under the setting; None where spot checks contradict the count."""
        counts = self._counts(setting, touched)
        if counts is None:
            return None
        rows = self.usual.shapes.places(counts.shapes)
        same = counting.as_counted(counts, self.usual)[rows]
        moved, unmoved = rows[~same], self.usual.heaviest_of(rows[same])
        spots = (
            counting.spots(self.usual, moved, counts)
            if len(moved) > SPOTS
            else list(self.usual.shapes.take(moved))
        )
        checked = [*spots, *([unmoved.shape] if unmoved else [])]
        measured = [*checked, *self._uncounted(counts, touched)]
        table = remeasure(self.host, self.default, setting, measured)
        return counting.fill_table(table, self.default, counts, checked)

    def _counts(self, setting: Setting, touched: Column) -> VllmCounts | None:
        """Of what may change, and of the heaviest that should not; of all, if one of these does."""
        others = np.flatnonzero(~touched)
        heaviest = np.argsort(-self.usual.embeds[others], kind="stable")[:_SURE]
        surest = np.sort(others[heaviest])
        if touched.sum() + len(surest) < len(self.usual):
            asked = touched.copy()
            asked[surest] = True
            counts = count(self.host, setting, self.usual.shapes.take(np.flatnonzero(asked)))
            if counts and counting.reproduces(counts, self.usual.take(surest)):
                return counts
        return count(self.host, setting, self.usual.shapes)

    def _uncounted(self, counts: VllmCounts, touched: Column) -> list[Shape]:
        """Shapes of the modality for which only processing tells."""
        shapes = self.usual.shapes
        left = touched & (counts.shapes.places(shapes) < 0)
        every = self.default.of(self.usual.modality).shapes
        odd = every.take(np.flatnonzero(shapes.places(every) < 0))
        return [*shapes.take(np.flatnonzero(left)), *(s for s in odd if s not in counts.shapes)]
