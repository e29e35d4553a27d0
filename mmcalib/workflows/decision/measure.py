"""Second step: what every shape costs under a setting, through vLLM's loaders and processor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mmcalib.census.census import Census, shape_order
from mmcalib.derive.costs import CostColumns, CostMap, CostTable, Mismatch, Refusal, Resampled
from mmcalib.derive.item_cost import ItemCost
from mmcalib.domain.cost import Cost
from mmcalib.domain.items import Skipped
from mmcalib.domain.setting import Setting
from mmcalib.domain.shape_counts import ShapeCount, ShapeCounts
from mmcalib.domain.shapes import Modality, Shape, weight
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, File, Measure, Measured
from mmcalib.errors import EngineDied
from mmcalib.progress import Progress, Task
from mmcalib.workflows.decision.stand_ins import StandIns, item_cost, stand_ins
from mmcalib.workflows.media_files import Files, files

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
    """Cost every shape by a blank stand-in, processed or counted, and every sampled file by itself;
    the costliest of each modality always among them. `before` is the table of another setting.

    Where both exist and differ the real one wins and the difference is kept. A sampled item of
    which `files` has none, or that the server cannot load, though it takes a blank of its shape,
    is returned as skipped; of one that is out of reach the blank counts.
    """
    counts = {modality: census.counts(modality) for modality in census.modalities()}
    known = {m: before.of(m) for m in before.witnesses} if before is not None else {}
    shapes = sum(map(len, counts.values()))
    with progress.step("measuring costs", shapes + len(sample)) as task:
        blanks = stand_ins(host, setting, counts, task, known)
        safe = [one for one in sample if not _too_large(blanks, one[0])]
        chosen = [*safe, *_costliest(blanks, {shape for shape, _ in safe})]
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
    """Each file's answer; one that ends or silences the engine is answered by that, and the engine
    begun again. Raises EngineDied where several do.
    """
    answers: list[Measured] = []
    for _ in range(_MOST_DEATHS):
        try:
            for answer in _each(host, setting, subjects[len(answers) :], task):
                answers.append(answer)  # noqa: PERF402 - those before a death count
        except EngineDied as error:
            if len(answers) == len(subjects):
                raise
            last = error
            answers.append(Measured(len(answers), None, refusal=error.message))
            host.revive()
        else:
            return answers
    raise last


def _each(
    host: EngineHost, setting: Setting, subjects: Sequence[File], task: Task
) -> Iterator[Measured]:
    for answer in host.measure(Measure(setting, tuple(subjects)), "measuring costs"):
        task.advance()
        yield answer


def _lightest(chosen: Sample) -> Sample:
    """One of each modality, to be loaded once before the others are timed: the first of a kind also
    takes what importing its decoder does.
    """
    lightest: dict[Modality, tuple[Shape, str]] = {}
    for shape, path in sorted(chosen, key=lambda one: weight(one[0])):
        lightest.setdefault(shape.modality, (shape, path))
    return list(lightest.values())


def _costliest(blanks: StandIns, known: set[Shape]) -> list[tuple[Shape, str]]:
    """Per modality the shape that takes most of the encoder cache, where it is not `known`."""
    found = [costs[int(costs.embeds.argmax())] for costs in blanks.costs.values() if costs]
    return [(cost.shape, cost.exemplar) for cost in found if cost.shape not in known]


def _too_large(blanks: StandIns, shape: Shape) -> bool:
    """Whether the stand-in was refused for want of memory: the real one would take as much."""
    answer = blanks.answers.get(shape)
    return answer is not None and answer.refused_by == "host_memory"


def remeasure(
    host: EngineHost, default: CostTable, setting: Setting, changed: Iterable[Shape]
) -> CostTable:
    """The default's table with the shapes that a cap may change measured anew, by stand-ins."""
    asked = set(changed)
    anew = [s for m in default.modalities() for s in _in_order(default.of(m), asked)]
    subjects = tuple(Blank(shape) for shape in anew)
    answers = host.measure(Measure(setting, subjects), "measuring a setting") if anew else ()
    usual, found = default.costs, dict[Shape, ItemCost | None]()
    refusals = list(default.refusals)
    for shape, answer in zip(anew, answers, strict=True):
        before, found[shape] = usual[shape], None
        if answer.cost is None:
            refusals.append(_refusal(shape, before.count, before.exemplar, answer))
        else:
            cost = item_cost(shape, before.count, before.exemplar, answer.cost, "blank")
            found[shape] = cost
    columns = {m: _but(default.of(m).unchanged(), found) for m in default.modalities()}
    return CostTable(setting, columns, tuple(refusals))


def _in_order(costs: CostColumns, asked: Collection[Shape]) -> list[Shape]:
    return sorted(shape for shape in asked if shape in costs.shapes)


def _but(costs: CostColumns, found: Mapping[Shape, ItemCost | None]) -> CostColumns:
    mine = {s: cost for s, cost in found.items() if s.modality == costs.modality}
    return costs.but(mine)


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
                changed[shape] = _one_fewer(blank, path, _entry(counts, shape))
            continue
        if found.cost is None:
            if blank is not None:
                failed[shape.modality] = failed.get(shape.modality, 0) + 1
                unreadable.append(Skipped(path, f"vLLM cannot load it: {found.refusal}"))
                changed[shape] = _one_fewer(blank, path, _entry(counts, shape))
            continue
        changed[shape] = item_cost(shape, _entry(counts, shape).count, path, found.cost, "real")
        compared += 1
        if found.resampled:
            resampled.append(Resampled(path, *found.resampled))
        if blank is None or (blank.tokens, blank.embeds) != (
            found.cost.tokens,
            found.cost.embeds,
        ):
            mismatches.append(_mismatch(shape, path, found.cost, blank))
    taken = {shape for shape, cost in changed.items() if cost is not None}
    refusals = []
    for shape, answer in blanks.answers.items():
        if answer.cost is None and shape not in taken:
            entry = _entry(counts, shape)
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


def _entry(counts: Mapping[Modality, ShapeCounts], shape: Shape) -> ShapeCount:
    return counts[shape.modality].of(shape)


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
