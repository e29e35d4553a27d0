"""What else could be set, for a reader to try: values of options and contexts, combined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from mmcalib.domain.budget import Budget
from mmcalib.domain.knobs import Knob
from mmcalib.domain.media_option import Value
from mmcalib.domain.shapes import Modality
from mmcalib.errors import VllmRefused
from mmcalib.progress import Progress
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.explore import Explored
from mmcalib.workflows.decision.held import budgeted, chosen_value

# vLLM is asked for one or two budgets of each state at two to six contexts, and answers in 30 ms:
# with two modalities some hundred times.
_MOST_VALUES: Final = 6
_MOST_CONTEXTS: Final = 6
_LEAST_CONTEXT: Final = 2048


@dataclass(frozen=True, slots=True)
class State:
    """One option of a group away from its chosen value; without `turned` all are as chosen.
    `budget_of` is the place of the state that vLLM budgets alike.
    """

    turned: Explored | None
    budget_of: int

    @property
    def values(self) -> dict[str, Value]:
        return {self.turned.point.knob.name: self.turned.point.value} if self.turned else {}


@dataclass(frozen=True, slots=True)
class Group:
    """Options that move the same items, of which one is turned at a time: what two do together was
    not measured.
    """

    modalities: tuple[Modality, ...]
    knobs: tuple[Knob, ...]
    states: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class GridCell:
    """A state of each group, by its place, and a context, as vLLM would be started and budgets."""

    places: tuple[int, ...]
    max_model_len: int
    engine_args: Mapping[str, Any]
    budget: Budget
    chosen: bool = False
    hinted: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """`combinations` has those of states that are budgeted by themselves; what vLLM refuses is not
    among them.
    """

    groups: tuple[Group, ...] = ()
    contexts: tuple[int, ...] = ()
    combinations: tuple[GridCell, ...] = field(default=(), repr=False)


def grid(decision: Decision, budgets: BudgetSource, progress: Progress) -> Grid:
    """Every combination with vLLM's budget. Size hints are left out but in what was decided: of
    other values nobody has looked whether they are true.
    """
    groups = tuple(_groups(decision))
    contexts = _contexts(decision.budget.max_model_len, budgets)
    own = [[n for n, s in enumerate(g.states) if s.budget_of == n] for g in groups]
    every = list(product(*own))
    most = decision.table.most_embeds()
    found: list[GridCell] = []
    with progress.step("asking what else could be set", len(every)) as task:
        for places in every:
            row = _row(decision, budgets, groups, places, contexts, most)
            found += (row[context] for context in contexts if context in row)
            task.advance()
    return Grid(groups, contexts, tuple(found))


def _row(
    decision: Decision,
    budgets: BudgetSource,
    groups: Sequence[Group],
    places: tuple[int, ...],
    contexts: Sequence[int],
    most: Mapping[Modality, int],
) -> dict[int, GridCell]:
    """One state of each group under every context. Items grow with it up to a point: where they
    are alike at two contexts, so they are between.
    """
    row: dict[int, GridCell] = {}

    def ask(context: int) -> None:
        one = _combination(decision, budgets, groups, places, context, most)
        row.update({context: one} if one else {})

    def between(low: int, high: int) -> None:
        if high - low < 2:
            return
        least, most = row.get(contexts[low]), row.get(contexts[high])
        if least and most and _alike(least, most):
            row.update((c, _under(c, most)) for c in contexts[low + 1 : high] if c not in row)
            return
        middle = (low + high) // 2
        ask(contexts[middle])
        between(low, middle)
        between(middle, high)

    for context in dict.fromkeys((contexts[0], contexts[-1], *_own(decision, places, contexts))):
        ask(context)
    between(0, len(contexts) - 1)
    return row


def _own(decision: Decision, places: Sequence[int], contexts: Sequence[int]) -> Iterator[int]:
    """The context of what was decided."""
    if not any(places) and decision.budget.max_model_len in contexts:
        yield decision.budget.max_model_len


def _alike(one: GridCell, other: GridCell) -> bool:
    """Whether only the context differs; of what was decided hints may too."""
    return replace(one.budget, max_model_len=0, dummies={}) == replace(
        other.budget, max_model_len=0, dummies={}
    ) and not (one.hinted or other.hinted)


def _under(context: int, one: GridCell) -> GridCell:
    return replace(
        one,
        max_model_len=context,
        engine_args={**one.engine_args, "max_model_len": context},
        budget=replace(one.budget, max_model_len=context),
        chosen=False,
    )


def _contexts(chosen: int, budgets: BudgetSource) -> tuple[int, ...]:
    """Powers of two up to the model's, the largest ones, with that which was chosen."""
    if "max_model_len" in budgets.given:
        return (chosen,)
    most, found = max(chosen, budgets.opened.max_model_len), [_LEAST_CONTEXT]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    largest = sorted({*found, most} - {chosen})[-(_MOST_CONTEXTS - 1) :]
    return tuple(sorted({*(c for c in largest if c <= most), chosen}))


def _groups(decision: Decision) -> Iterator[Group]:
    """Options of one modality, and of those that they move too, are one group."""
    merged: list[tuple[set[Modality], dict[str, list[Explored]]]] = []
    effective = {point.knob.name for point in decision.chosen}
    for explored in decision.explored:
        knob = explored.point.knob
        if knob.name not in effective:
            continue
        touched = {knob.modality, *knob.bleeds}
        joined = [one for one in merged if one[0] & touched]
        rows: dict[str, list[Explored]] = {}
        for one in joined:
            touched |= one[0]
            rows |= one[1]
            merged.remove(one)
        rows.setdefault(knob.name, []).append(explored)
        merged.append((touched, rows))
    for touched, rows in merged:
        states = [State(None, 0)]
        for row in rows.values():
            chosen = chosen_value(decision, row[0].point.knob)
            for explored in _spread(row, chosen):
                own = not _as_decided(explored, row, chosen)
                states.append(State(explored, len(states) if own else 0))
        knobs = tuple(row[0].point.knob for row in rows.values())
        yield Group(tuple(sorted(touched)), knobs, tuple(states))


def _spread(row: Sequence[Explored], chosen: Value) -> list[Explored]:
    """The others, at most so many, with the first and the last."""
    others = [e for e in row if e.point.value != chosen]
    most = _MOST_VALUES - 1
    if len(others) <= most:
        return others
    places = {round(n * (len(others) - 1) / (most - 1)) for n in range(most)}
    return [others[place] for place in sorted(places)]


def _as_decided(explored: Explored, row: Sequence[Explored], chosen: Value) -> bool:
    """Whether vLLM budgets every value of a loader's option as the chosen one."""
    if not explored.point.knob.by_loader:
        return False
    decided = next((e.budget for e in row if e.point.value == chosen), None)
    return decided is not None and all(
        e.budget.max_tokens_per_item == decided.max_tokens_per_item for e in row
    )


def _combination(
    decision: Decision,
    budgets: BudgetSource,
    groups: Sequence[Group],
    places: tuple[int, ...],
    context: int,
    most: Mapping[Modality, int],
) -> GridCell | None:
    """None where vLLM refuses it."""
    if not any(places) and context == decision.budget.max_model_len:
        args, hinted = decision.engine_args, bool(decision.hints)
        return GridCell(places, context, args, decision.budget, chosen=True, hinted=hinted)
    states = (group.states[place].turned for group, place in zip(groups, places, strict=True))
    points = [explored.point for explored in states if explored]
    budgets = replace(budgets, context_tokens=context)
    try:
        return GridCell(places, context, *budgeted(decision, budgets, points, most))
    except VllmRefused:
        return None
