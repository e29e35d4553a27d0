"""Second step: what every shape costs under a setting, through vLLM's loaders and processor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from mmcalib.census.census import Census
from mmcalib.census.shape_counts import ShapeCount
from mmcalib.derive.costs import Basis, CostTable, ItemCost, Mismatch, Refusal
from mmcalib.domain.cost import Cost
from mmcalib.domain.items import Skipped
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality, Shape, weight
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, File, Measure, Measured
from mmcalib.errors import EngineDied
from mmcalib.progress import Progress, Task
from mmcalib.workflows.decision.stand_ins import StandIns, stand_ins
from mmcalib.workflows.media_files import Files, files
from mmcalib.workflows.read import shapes_of

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
    is returned as skipped.
    """
    counts = shapes_of(census)
    with progress.step("measuring costs", len(counts) + len(sample)) as task:
        blanks = stand_ins(host, setting, counts, task, before)
        by_shape = blanks.answers
        safe = [(shape, path) for shape, path in sample if not _too_large(by_shape[shape])]
        chosen = [*safe, *_costliest(counts, by_shape, {shape for shape, _ in safe})]
        found = files([(shape.modality, path) for shape, path in chosen])
        given = dict(zip(chosen, found, strict=True))
        good = {one: file for one, file in given.items() if isinstance(file, str)}
        bad = {one: file for one, file in given.items() if isinstance(file, Skipped)}
        first = _lightest(list(good))
        task.total(len(counts) + len(first) + len(good))
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


def _costliest(
    counts: dict[Shape, ShapeCount], by_shape: dict[Shape, Measured], known: set[Shape]
) -> list[tuple[Shape, str]]:
    """Per modality the shape that takes most of the encoder cache, where it is not `known`."""
    heaviest: dict[Modality, Shape] = {}
    for shape, answer in by_shape.items():
        best = heaviest.get(shape.modality)
        if answer.cost and (best is None or answer.cost.embeds > _embeds(by_shape[best])):
            heaviest[shape.modality] = shape
    return [(s, counts[s].exemplars[0]) for s in heaviest.values() if s not in known]


def _too_large(answer: Measured) -> bool:
    """Whether the stand-in was refused for want of memory: the real one would take as much."""
    return answer.refused_by == "host_memory"


def _embeds(answer: Measured) -> int:
    return answer.cost.embeds if answer.cost else 0


def remeasure(
    host: EngineHost, default: CostTable, setting: Setting, changed: Collection[Shape]
) -> CostTable:
    """The default's table with the shapes that a cap may change measured anew, by stand-ins."""
    anew = set(changed)
    shapes = [shape for shape in default.costs if shape in anew]
    subjects = tuple(Blank(shape) for shape in shapes)
    answers = host.measure(Measure(setting, subjects), "measuring a setting") if shapes else ()
    costs = {
        shape: cost if cost.basis == "counted" else replace(cost, basis="unchanged")
        for shape, cost in default.costs.items()
    }
    refusals = list(default.refusals)
    for shape, answer in zip(shapes, answers, strict=True):
        before = costs.pop(shape)
        if answer.cost is None:
            refusals.append(_refusal(shape, before.count, before.exemplar, answer))
        else:
            costs[shape] = _cost(shape, before.count, before.exemplar, answer.cost, "blank")
    return CostTable(setting, costs, tuple(refusals))


def _refusal(shape: Shape, count: int, exemplar: str, answer: Measured) -> Refusal:
    return Refusal(shape, count, exemplar, answer.refusal, answer.refused_by)


def _table(
    setting: Setting,
    counts: dict[Shape, ShapeCount],
    blanks: StandIns,
    real: Iterable[tuple[tuple[Shape, str], Measured | Skipped]],
) -> tuple[CostTable, list[Skipped]]:
    costs: dict[Shape, ItemCost] = {}
    refusals: list[Refusal] = []
    mismatches: list[Mismatch] = []
    unreadable: list[Skipped] = []
    failed: dict[Modality, int] = {}
    for shape, entry in counts.items():
        answer = blanks.answers[shape]
        if answer.cost is None:
            refusals.append(_refusal(shape, entry.count, entry.exemplars[0], answer))
        else:
            basis: Basis = "counted" if shape in blanks.counted else "blank"
            costs[shape] = _cost(shape, entry.count, entry.exemplars[0], answer.cost, basis)
    compared = 0
    for (shape, path), found in real:
        blank = costs.get(shape)
        if isinstance(found, Skipped):
            unreadable.append(found)
            if blank is not None:
                _forget(costs, blank, path, counts[shape])
            continue
        if found.cost is None:
            if blank is not None:
                failed[shape.modality] = failed.get(shape.modality, 0) + 1
                unreadable.append(Skipped(path, f"vLLM cannot load it: {found.refusal}"))
                _forget(costs, blank, path, counts[shape])
            continue
        count = counts[shape].count
        costs[shape] = _cost(shape, count, path, found.cost, "real")
        compared += 1
        if blank is None or (blank.tokens, blank.embeds) != (
            found.cost.tokens,
            found.cost.embeds,
        ):
            refusals = [refusal for refusal in refusals if refusal.shape != shape]
            mismatches.append(_mismatch(shape, path, found.cost, blank))
    table = CostTable(
        setting,
        costs,
        tuple(refusals),
        tuple(mismatches),
        compared,
        failed,
        blanks.witnesses,
    )
    return table, unreadable


def _forget(costs: dict[Shape, ItemCost], blank: ItemCost, path: str, entry: ShapeCount) -> None:
    """One file fewer of this shape; the shape goes when it was the only one."""
    others = [exemplar for exemplar in entry.exemplars if exemplar != path]
    if blank.count <= 1 or not others:
        del costs[blank.shape]
        return
    costs[blank.shape] = replace(blank, count=blank.count - 1, exemplar=others[0])


def _cost(shape: Shape, count: int, exemplar: str, cost: Cost, basis: Basis) -> ItemCost:
    seconds = cost.load_s + cost.process_s
    return ItemCost(
        shape,
        count,
        exemplar,
        cost.tokens,
        cost.embeds,
        cost.tensor_bytes,
        seconds,
        cost.sampled,
        basis,
        cost.cpu_s if basis == "real" else 0.0,
    )


def _mismatch(shape: Shape, path: str, real: Cost, blank: ItemCost | None) -> Mismatch:
    if blank is None:
        return Mismatch(path, shape, real.tokens, 0, "a blank of its shape was refused")
    why = f"loaded as {_words(real.sampled)}, the header promised {_words(blank.sampled)}"
    if real.sampled == blank.sampled:
        why = "the same size, other content"
    return Mismatch(path, shape, real.tokens, blank.tokens, why)


def _words(sampled: tuple[int, ...]) -> str:
    return "×".join(str(number) for number in sampled)
