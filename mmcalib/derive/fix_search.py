"""Search for the cheapest combination of fixes that reaches a goal, with few rehearsals.

More fixes never take more memory: if a combination reaches the goal, every larger one does. So the
fixes are sorted by cost, and bisection finds the shortest prefix that reaches the goal; its last
fix is needed. This repeats with the fixes before it, until the needed ones reach the goal. Then the
most expensive fix is as cheap as possible, next the second, and so on, and every fix is needed.

You may prefer a different trade-off. So the search repeats for each cost that the cheapest
combination has, without any fix of that cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmcalib.derive.fixes import COSTS, Fix, Outcome, highest_levels

Evaluate = Callable[[tuple[Fix, ...]], Outcome]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best combination. `proven`: every fix in it is needed, or none reaches the goal. `others`
    reach it too, each without one cost of the best; `repaired` ones replace the best because less
    may suffice.
    """

    best: tuple[Fix, ...]
    reached: bool
    proven: bool
    others: tuple[tuple[Fix, ...], ...] = ()
    repaired: tuple[tuple[Fix, ...], ...] = ()


class _BudgetSpent(Exception):  # noqa: N818 - no error: the rehearsals are used up
    """No evaluations are left."""


@dataclass(slots=True)
class _Trials:
    """Outcomes so far. An outcome that follows from another is not evaluated."""

    evaluate: Evaluate
    left: int
    answers: dict[tuple[Fix, ...], Outcome]
    alone: dict[str, Outcome] = field(default_factory=dict)

    def outcome_of(self, fixes: Iterable[Fix]) -> Outcome:
        chosen = highest_levels(fixes)
        if chosen not in self.answers:
            if self.left == 0:
                raise _BudgetSpent
            self.left -= 1
            self.answers[chosen] = self.evaluate(chosen)
        return self.answers[chosen]

    def reaches(self, fixes: Iterable[Fix]) -> bool:
        chosen = highest_levels(fixes)
        for known, outcome in self._combinable():
            if outcome.reached and _is_subset(known, chosen):
                return True
            if not outcome.reached and _is_subset(chosen, known):
                return False
        return self.outcome_of(chosen).reached

    def refuses(self, fixes: Iterable[Fix]) -> bool:
        """True if vLLM rejected them when evaluated."""
        return not self.reaches(fixes) and bool(
            self.answers.get(highest_levels(fixes), self.answers[()]).refusal
        )

    def best(self) -> tuple[Fix, ...]:
        """The evaluated combination that is closest to the goal; of several the smallest."""
        usable = {fixes: outcome for fixes, outcome in self._combinable() if fixes}
        return min(usable, key=lambda k: (usable[k].lacking_bytes, len(k)), default=())

    def cheapest_reached(self) -> tuple[Fix, ...]:
        """The cheapest evaluated one that reaches the goal, by its dearest fixes; else the best."""
        reached = [fixes for fixes, outcome in self._combinable() if fixes and outcome.reached]
        return min(reached, key=_price) if reached else self.best()

    def _combinable(self) -> Iterator[tuple[tuple[Fix, ...], Outcome]]:
        """Outcomes without fixes that cannot be combined, such as size hints."""
        for fixes, outcome in self.answers.items():
            if not outcome.refusal and all(fix.combines for fix in fixes):
                yield fixes, outcome


def _price(fixes: Iterable[Fix]) -> list[tuple[int, int]]:
    """Sort key of a combination: the dearest fix first."""
    return sorted(((COSTS.index(fix.cost), fix.severity) for fix in fixes), reverse=True)


def _is_subset(less: Sequence[Fix], more: Sequence[Fix]) -> bool:
    levels = {fix.knob: fix.level for fix in more}
    return all(levels.get(fix.knob, -1) >= fix.level for fix in less)


def find_cheapest(
    fixes: Sequence[Fix], base: Outcome, evaluate: Evaluate, most: int, more: int = 0
) -> SearchResult:
    """Rehearse fixes alone and combine them, with at most `most` evaluations, and `more` for other
    ways to the goal. `base` is the outcome without fixes; `untried` fixes are not rehearsed.
    """
    trials = _Trials(evaluate, most, {(): base})
    try:
        for fix in fixes:
            if fix.alone and not fix.untried:
                trials.alone[fix.name] = trials.outcome_of((fix,))
        best = _best_combination(_in_order_of_cost(fixes, trials), trials)
        proven = True
    except _BudgetSpent:
        best, proven = trials.cheapest_reached(), False
    if not best or not trials.answers[best].reached:
        return SearchResult(best, False, proven)
    trials.left = more
    row = _in_order_of_cost(fixes, trials)
    return SearchResult(best, True, proven, tuple(_others(best, row, trials)))


def _others(best: tuple[Fix, ...], row: list[Fix], trials: _Trials) -> Iterator[tuple[Fix, ...]]:
    """Combinations without one cost of the best, the dearest cost first."""
    yielded = {best}
    for cost in sorted({fix.cost for fix in best} - {COSTS[0]}, key=COSTS.index, reverse=True):
        without = [fix for fix in row if fix.cost != cost]
        try:
            other = _best_combination(without, trials)
        except _BudgetSpent:
            return
        reaches = bool(other) and trials.answers[other].reached
        if reaches and other not in yielded and all(fix.cost != cost for fix in other):
            yielded.add(other)
            yield other


def _in_order_of_cost(fixes: Iterable[Fix], trials: _Trials) -> list[Fix]:
    """Sort combinable fixes by cost; at one price the most effective first."""
    alone, gains = trials.alone, _gains(fixes, trials)
    refused = {fix.knob for fix in fixes if fix.name in alone and alone[fix.name].refusal}
    usable = [f for f in fixes if f.combines and not f.untried and f.knob not in refused]
    return sorted(usable, key=lambda f: (COSTS.index(f.cost), f.severity, -gains.get(f.knob, 0)))


def _gains(fixes: Iterable[Fix], trials: _Trials) -> dict[str, int]:
    """Bytes that each knob gained alone, at the evaluated level."""
    gains: dict[str, int] = {}
    for fix in fixes:
        one = trials.alone.get(fix.name)
        if one is not None and not one.refusal:
            gain = trials.answers[()].lacking_bytes - one.lacking_bytes
            gains[fix.knob] = max(gain, gains.get(fix.knob, 0))
    return gains


def _best_combination(row: list[Fix], trials: _Trials) -> tuple[Fix, ...]:
    """The best combination. Raises _BudgetSpent if the evaluations do not suffice."""
    gains = _gains(row, trials)
    first = _guess_count(row, (), gains, trials)
    if trials.reaches(row[:first]):
        row = row[:first]
    if not trials.reaches(row):
        row = _drop_refused(row, trials)
        if not trials.reaches(row):
            return trials.best()
    needed: list[Fix] = []
    while count := _shortest(row, needed, gains, trials):
        needed, row = [row[count - 1], *needed], row[: count - 1]
    best = highest_levels(needed)
    return best if best and trials.outcome_of(best).reached else trials.cheapest_reached()


def _drop_refused(row: list[Fix], trials: _Trials) -> list[Fix]:
    """The most of the row that vLLM accepts: without one knob, else without the dearest fixes."""
    knobs = list(dict.fromkeys(fix.knob for fix in reversed(row)))
    rows = [row, *([fix for fix in row if fix.knob != knob] for knob in knobs[1:3])]
    rows += [row[:length] for length in range(len(row) - 1, -1, -1)]
    return next(one for one in rows if not one or not trials.refuses(one))


def _shortest(
    row: Sequence[Fix], needed: Sequence[Fix], gains: Mapping[str, int], trials: _Trials
) -> int:
    """The fewest from the row's start that reach the goal, guessed by each one's own gain."""
    low, high = -1, len(row)
    first = middle = _guess_count(row, needed, gains, trials)
    while high - low > 1:
        if not low < middle < high:
            middle = (low + high) // 2
        reached = trials.reaches([*row[:middle], *needed])
        low, high = (low, middle) if reached else (middle, high)
        # Confirm a good guess by its neighbour; after a bad one, bisect.
        neighbour = middle - 1 if reached else middle + 1
        middle = neighbour if middle == first else (low + high) // 2
    return high


def _guess_count(
    row: Sequence[Fix], needed: Sequence[Fix], gains: Mapping[str, int], trials: _Trials
) -> int:
    for count in range(len(row) + 1):
        knobs = {fix.knob for fix in (*row[:count], *needed)}
        if sum(gains.get(knob, 0) for knob in knobs) >= trials.answers[()].lacking_bytes:
            return count
    return len(row) // 2
