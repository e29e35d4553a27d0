"""Measure the cost of every shape: process it in vLLM, or count it with vLLM's code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mmcalib.census.census import Census, shape_order
from mmcalib.decision.media_files import Files, prepare_files
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import Cost
from mmcalib.domain.shape_columns import Column, ShapeCount, ShapeCounts, Shapes
from mmcalib.domain.shapes import (
    AudioShape,
    ImageShape,
    Modality,
    Shape,
    VideoShape,
    is_size,
    scaled,
    weight,
)
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, CountEmbeds, File, Measure, Measured
from mmcalib.errors import EngineDied, VllmMoved, VllmRefused
from mmcalib.limits import counting
from mmcalib.limits.costs import (
    Basis,
    CostColumns,
    CostMap,
    CostTable,
    ItemCost,
    Mismatch,
    Refusal,
    ResampledClip,
)
from mmcalib.progress import Progress, Task

# Fewer shapes are all processed: that takes no longer than to prove the count.
_WORTH_COUNTING = 2 * counting.PROBES
# Shapes per request to vLLM's count: the child can report between two requests.
_AT_A_TIME = 20_000


@dataclass(slots=True)
class BlankCosts:
    """Costs of blanks, one per shape, without those that vLLM rejects. Shapes in `answers` were
    processed. The others have vLLM's count, which `witnesses` processed shapes confirm.
    """

    host: EngineHost
    setting: Setting
    task: Task
    costs: dict[Modality, CostColumns] = field(default_factory=dict)
    answers: dict[Shape, Measured] = field(default_factory=dict)
    witnesses: dict[Modality, int] = field(default_factory=dict)


def measure_blanks(
    host: EngineHost,
    setting: Setting,
    shapes: Mapping[Modality, ShapeCounts],
    task: Task,
    before: Mapping[Modality, CostColumns],
) -> BlankCosts:
    """Return each shape's cost under the setting; `before` has costs by an already proven count."""
    blanks = BlankCosts(host, setting, task)
    for modality, entries in shapes.items():
        costs, pending = CostColumns.unmeasured(entries), np.ones(len(entries), dtype=bool)
        worth_it = len(entries) > _WORTH_COUNTING
        if worth_it and (counts := count_embeds(host, setting, entries.shapes)):
            costs, pending = _cost_by_count(blanks, costs, counts, before.get(modality))
        left = entries.shapes.take(np.flatnonzero(pending))
        _process(blanks, [shape for shape in left if shape not in blanks.answers])
        processed: dict[Shape, ItemCost | None] = {}
        for shape, answer in blanks.answers.items():
            if shape.modality == modality:
                entry = entries.count_of(shape)
                items = shape, entry.count, entry.exemplars[0]
                processed[shape] = item_cost(*items, answer.cost, "blank") if answer.cost else None
        blanks.costs[modality] = costs.replace_costs(processed)
    return blanks


def item_cost(shape: Shape, count: int, exemplar: str, cost: Cost, basis: Basis) -> ItemCost:
    """Return the cost of each of `count` items."""
    seconds, cpu_s = cost.load_s + cost.process_s, cost.cpu_s if basis == "real" else 0.0
    numbers = cost.tokens, cost.embeds, cost.tensor_bytes, seconds, cost.sampled
    return ItemCost(shape, count, exemplar, *numbers, basis, cpu_s)


def _cost_by_count(
    blanks: BlankCosts, costs: CostColumns, counts: counting.VllmCounts, before: CostColumns | None
) -> tuple[CostColumns, Column]:
    """Return the counted costs and the rows left to process: all if one witness contradicts the
    count. Shapes too large for this machine's memory prove nothing and are processed too. If the
    count was proven `before`, shapes that this setting does not change need few witnesses.
    """
    same = np.zeros(len(counts), dtype=bool)
    if before is not None:
        unchanged = before.shapes.take(np.flatnonzero(counting.match_counts(counts, before)))
        same[counts.shapes.positions(unchanged)] = True
    chosen = counting.choose_probe_shapes(counts.take(np.flatnonzero(~same)))
    chosen += counting.choose_probe_shapes(counts.take(np.flatnonzero(same)), counting.PROBES_AGAIN)
    _process(blanks, chosen)
    answers = [(shape, blanks.answers[shape]) for shape in chosen]
    too_large = [weight(s) for s, answer in answers if answer.refused_by == "host_memory"]
    rows = counts.shapes.positions(chosen).tolist()
    proof = [
        (counts[row], answer.cost)
        for row, (_, answer) in zip(rows, answers, strict=True)
        if answer.refused_by != "host_memory"
    ]
    confirmed = [
        (c, cost)
        for c, cost in proof
        if cost and (cost.embeds, cost.sampled) == (c.embeds, c.sampled)
    ]
    rule = counting.fit_cost_rule(confirmed) if len(confirmed) == len(proof) else None
    pending = np.ones(len(costs), dtype=bool)
    if rule is None:
        return costs, pending
    text, nbytes = rule.columns(counts)
    by_rule = (text >= 0) & (nbytes >= 0) & ~np.isin(np.arange(len(counts)), rows)
    if too_large:
        by_rule &= counts.shapes.weights() < min(too_large)
    embeds, places = counts.embeds[by_rule], costs.shapes.positions(counts.shapes)[by_rule]
    pending[places] = False
    blanks.task.advance(len(places))
    blanks.witnesses[costs.modality] = len(confirmed)
    counted = costs.with_counts(
        places,
        tokens=embeds + text[by_rule],
        embeds=embeds,
        tensor_bytes=nbytes[by_rule],
        process_s=rule.seconds_per_embed * embeds,
        sampled=counts.sampled[by_rule],
    )
    return counted, pending


def _process(blanks: BlankCosts, shapes: Sequence[Shape]) -> None:
    if not shapes:
        return
    subjects = tuple(Blank(shape) for shape in shapes)
    answers = blanks.host.measure(Measure(blanks.setting, subjects), "measuring costs")
    for shape, answer in zip(shapes, answers, strict=True):
        blanks.answers[shape] = answer
        blanks.task.advance()


def count_embeds(host: EngineHost, setting: Setting, shapes: Shapes) -> counting.VllmCounts | None:
    """Count embeddings with vLLM's own code; None if vLLM cannot count these shapes."""
    parts = []
    for start in range(0, len(shapes), _AT_A_TIME):
        some = shapes[start : start + _AT_A_TIME]
        try:
            answer = host.ask(CountEmbeds(setting, tuple(map(Blank, some))), "counting")
        except (VllmMoved, VllmRefused):
            return None
        parts_of_items = answer.parts or (None,) * len(some)
        parts.append(
            counting.VllmCounts.from_columns(some, answer.embeds, answer.sampled, parts_of_items)
        )
        if not any(map(len, parts)):
            return None
    return counting.VllmCounts.concatenate(parts, shapes) if parts else None


# Copies of an item that are compared with it, and the scale of the smallest and of a larger one.
_COPIES, _SMALLEST, _LARGER = 33, 1 / 64, 4.0
# Shares of an item above which its loss is not worth a word.
_LOST_SOUND, _LOST_DETAIL = 0.95, 0.5


def find_same_cost(
    host: EngineHost, setting: Setting, shape: Shape, dummy: Shape | None
) -> Shape | None:
    """Return the smallest copy that takes as many tokens; of the `dummy`'s size if all copies do.

    None if that has more than half of the pixels, or nearly all of a sound, of which the rest is
    lost; if a larger copy takes more (then the model enlarges the small ones); or if vLLM cannot
    count them.
    """
    larger = scaled(shape, _LARGER)
    edges: tuple[float, float] = 1.0, _SMALLEST
    found: Shape | None = None
    # The second time between the copies at both sides of the first step down.
    for _ in range(2):
        steps = np.geomspace(*edges, _COPIES).tolist()
        copies = [shape, *(scaled(shape, by) for by in steps)]
        shapes = Shapes.from_shapes(shape.modality, [*copies, larger])
        counts = count_embeds(host, setting, shapes)
        if counts is None or len(counts) < len(shapes):
            return None
        embeds = dict(zip(counts.shapes, counts.embeds.tolist(), strict=True))
        if embeds[larger] > embeds[shape]:
            return None
        fewer = [embeds[copy] < embeds[shape] for copy in copies]
        if True not in fewer:
            break
        below = fewer.index(True)
        edges, found = (steps[below - 2], steps[below - 1]), copies[below - 1]
    match found, shape, dummy:
        case None, VideoShape(), VideoShape():
            found = replace(shape, width_px=dummy.width_px, height_px=dummy.height_px)
        case None, AudioShape(), AudioShape():
            found = scaled(shape, dummy.duration_s / shape.duration_s)
        case None, ImageShape(), _:
            found = dummy
    least = _LOST_SOUND if shape.modality == "audio" else _LOST_DETAIL
    return found if found and weight(found) < weight(shape) * least else None


Sample = Sequence[tuple[Shape, str]]

# An engine takes seconds to restart. More than this many deaths are not the media's fault.
_MOST_DEATHS = 3


def measure(
    host: EngineHost,
    census: Census,
    setting: Setting,
    sample: Sample,
    progress: Progress,
    files: Files = prepare_files,
    before: CostTable | None = None,
) -> tuple[CostTable, list[Skipped]]:
    """Measure every shape by a blank, then the sampled files and the costliest ones themselves,
    which override their blanks. `before` is the table of another setting. Sampled items that cannot
    be loaded are returned as skipped; an unreachable one keeps the cost of its blank.
    """
    counts = {modality: census.counts(modality) for modality in census.modalities()}
    proven = {m: before.columns_of(m) for m in before.witnesses} if before is not None else {}
    shapes = sum(map(len, counts.values()))
    with progress.step("measuring costs", shapes + len(sample)) as task:
        blanks = measure_blanks(host, setting, counts, task, proven)
        # If a blank exceeds this machine's memory, the real file does too.
        too_large = {s for s, one in blanks.answers.items() if one.refused_by == "host_memory"}
        safe = [one for one in sample if one[0] not in too_large]
        costs = [costs for costs in blanks.costs.values() if costs]
        costliest = [columns[int(columns.embeds.argmax())] for columns in costs]
        sampled = {shape for shape, _ in safe}
        more = ((c.shape, c.exemplar) for c in costliest if c.shape not in sampled)
        chosen = [*safe, *(one for one in more if not is_size(one[1]))]
        prepared = files([(shape.modality, path) for shape, path in chosen])
        pairs = dict(zip(chosen, prepared, strict=True))
        good = {one: file for one, file in pairs.items() if isinstance(file, str)}
        bad = {one: file for one, file in pairs.items() if isinstance(file, Skipped)}
        # One file of each modality is loaded before the timed ones: it pays for imports.
        first: dict[Modality, tuple[Shape, str]] = {}
        for shape, path in sorted(good, key=lambda one: weight(one[0])):
            first.setdefault(shape.modality, (shape, path))
        task.total(shapes + len(first) + len(good))
        subjects = [File(one[0].modality, good[one]) for one in (*first.values(), *good)]
        answers = _measure_files(host, setting, subjects, task)[len(first) :]
        real: list[tuple[tuple[Shape, str], Measured | Skipped]] = [
            *zip(good, answers, strict=True),
            *bad.items(),
        ]
    return _table(setting, counts, blanks, real)


def _measure_files(
    host: EngineHost, setting: Setting, subjects: Sequence[File], task: Task
) -> list[Measured]:
    """Measure each file; one that kills the engine is refused. Raises EngineDied after several."""
    answers: list[Measured] = []
    for _ in range(_MOST_DEATHS):
        try:
            request = Measure(setting, tuple(subjects[len(answers) :]))
            for answer in host.measure(request, "measuring costs"):
                task.advance()
                # Answers from before a death count.
                answers.append(answer)
        except EngineDied as error:
            if len(answers) == len(subjects):
                raise
            last = error
            answers.append(Measured(None, refusal=error.message))
            host.revive()
        else:
            return answers
    raise last


def remeasure(
    host: EngineHost, default: CostTable, setting: Setting, changed: Iterable[Shape]
) -> CostTable:
    """Return the default's table with the `changed` shapes measured again by blanks."""
    wanted = set(changed)
    every = [default.columns_of(modality) for modality in default.modalities()]
    again = [s for one in every for s in sorted(s for s in wanted if s in one.shapes)]
    subjects = tuple(Blank(shape) for shape in again)
    answers = host.measure(Measure(setting, subjects), "measuring a setting") if again else ()
    usual, costs = default.costs, dict[Shape, ItemCost | None]()
    refusals = list(default.refusals)
    for shape, answer in zip(again, answers, strict=True):
        before, costs[shape] = usual[shape], None
        if answer.cost is None:
            of = before.count, before.exemplar
            refusals.append(Refusal(shape, *of, answer.refusal, answer.refused_by))
        else:
            costs[shape] = item_cost(shape, before.count, before.exemplar, answer.cost, "blank")
    columns = {one.modality: one.mark_unchanged().replace_costs(costs) for one in every}
    return CostTable(setting, columns, tuple(refusals))


def _table(
    setting: Setting,
    counts: Mapping[Modality, ShapeCounts],
    blanks: BlankCosts,
    real: Iterable[tuple[tuple[Shape, str], Measured | Skipped]],
) -> tuple[CostTable, list[Skipped]]:
    mismatches: list[Mismatch] = []
    resampled: list[ResampledClip] = []
    unreadable: list[Skipped] = []
    failed: dict[Modality, int] = {}
    costs, changed = CostMap(blanks.costs), dict[Shape, ItemCost | None]()
    compared = out_of_reach = 0
    for (shape, path), answer in real:
        blank = changed.get(shape, costs.get(shape))
        entry = counts[shape.modality].count_of(shape)
        if isinstance(answer, Skipped) and answer.out_of_reach:
            out_of_reach += 1
            continue
        if isinstance(answer, Skipped) or answer.cost is None:
            if isinstance(answer, Skipped):
                unreadable.append(answer)
            elif blank is not None:
                failed[shape.modality] = failed.get(shape.modality, 0) + 1
                unreadable.append(Skipped(path, f"vLLM cannot load it: {answer.refusal}"))
            if blank is not None:
                changed[shape] = _one_fewer(blank, path, entry)
            continue
        real_cost = answer.cost
        changed[shape] = item_cost(shape, entry.count, path, real_cost, "real")
        compared += 1
        if answer.resampled:
            resampled.append(ResampledClip(path, *answer.resampled))
        if blank is None or (blank.tokens, blank.embeds) != (real_cost.tokens, real_cost.embeds):
            mismatches.append(_mismatch(shape, path, real_cost, blank))
    loaded = {shape for shape, cost in changed.items() if cost is not None}
    refusals = []
    for shape, measured in blanks.answers.items():
        if measured.cost is None and shape not in loaded:
            entry = counts[shape.modality].count_of(shape)
            of = entry.count, entry.exemplars[0]
            refusals.append(Refusal(shape, *of, measured.refusal, measured.refused_by))
    refusals.sort(key=lambda refusal: shape_order(refusal.shape))
    columns = {modality: one.replace_costs(changed) for modality, one in blanks.costs.items()}
    more = compared, failed, blanks.witnesses, out_of_reach, tuple(resampled)
    return CostTable(setting, columns, tuple(refusals), tuple(mismatches), *more), unreadable


def _one_fewer(blank: ItemCost, path: str, entry: ShapeCount) -> ItemCost | None:
    """Return the cost for one file fewer of this shape; None if it was the only one."""
    others = [exemplar for exemplar in entry.exemplars if exemplar != path]
    if blank.count <= 1 or not others:
        return None
    return replace(blank, count=blank.count - 1, exemplar=others[0])


def _mismatch(shape: Shape, path: str, real: Cost, blank: ItemCost | None) -> Mismatch:
    if blank is None:
        return Mismatch(path, shape, real.tokens, 0, "vLLM rejects a blank of its shape")
    loaded, given = ("×".join(map(str, one.sampled)) for one in (real, blank))
    why = f"loaded as {loaded}, but its header gives {given}"
    if real.sampled == blank.sampled:
        why = "same size, different content"
    return Mismatch(path, shape, real.tokens, blank.tokens, why)


# Shapes that a value should not change but that are counted anyway, to verify that.
_VERIFIED = 1_000


@dataclass(frozen=True, slots=True)
class EmbedCounter:
    """vLLM's proven count of one modality's items; `usual` has their default costs."""

    host: EngineHost
    default: CostTable
    usual: CostColumns

    @classmethod
    def prove(cls, host: EngineHost, default: CostTable, modality: Modality) -> EmbedCounter | None:
        """Return the counter, or None if vLLM's count is missing, wrong or not worth it."""
        # Items with a wrong header prove nothing.
        wrong: dict[Shape, ItemCost | None] = {one.shape: None for one in default.mismatches}
        costs = default.columns_of(modality).replace_costs(wrong)
        if len(costs) <= counting.SPOT_CHECKS:
            return None
        if modality not in default.witnesses:
            counts = count_embeds(host, default.setting, costs.shapes)
            if counts is None or not counting.match_counts(counts, costs).all():
                return None
        return cls(host, default, costs)

    def cost_table(self, setting: Setting, touched: Column) -> CostTable | None:
        """Return the costs under the setting; None if spot checks contradict the count."""
        counts = self._counts(setting, touched)
        if counts is None:
            return None
        rows = self.usual.shapes.positions(counts.shapes)
        same = counting.match_counts(counts, self.usual)[rows]
        altered, unmoved = rows[~same], self.usual.take(rows[same]).heaviest
        spots = (
            counting.choose_spot_checks(self.usual, altered, counts)
            if len(altered) > counting.SPOT_CHECKS
            else list(self.usual.shapes.take(altered))
        )
        checked = [*spots, *([unmoved.shape] if unmoved else [])]
        # These can only be processed: vLLM does not count them, or their header is wrong.
        shapes, every = self.usual.shapes, self.default.columns_of(self.usual.modality).shapes
        uncounted = shapes.take(np.flatnonzero(touched & (counts.shapes.positions(shapes) < 0)))
        wrong = every.take(np.flatnonzero(shapes.positions(every) < 0))
        table = remeasure(self.host, self.default, setting, [*checked, *uncounted, *wrong])
        return counting.fill_table(table, self.default, counts, checked)

    def _counts(self, setting: Setting, touched: Column) -> counting.VllmCounts | None:
        """Count the touched shapes and the heaviest others; all if one of the others changes."""
        others = np.flatnonzero(~touched)
        heaviest = np.argsort(-self.usual.embeds[others], kind="stable")[:_VERIFIED]
        verified = np.sort(others[heaviest])
        if touched.sum() + len(verified) < len(self.usual):
            wanted = touched.copy()
            wanted[verified] = True
            some = self.usual.shapes.take(np.flatnonzero(wanted))
            counts = count_embeds(self.host, setting, some)
            if counts and counting.match_counts(counts, self.usual.take(verified)).all():
                return counts
        return count_embeds(self.host, setting, self.usual.shapes)
