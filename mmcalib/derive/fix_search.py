"""The cheapest combination of fixes that reaches a goal, by asking about as few as possible.

More fixes never hold less memory: what a combination reaches, every larger one reaches. So the
fixes are put in the order of what they cost, and the shortest start of that row which reaches the
goal is found by halving; its last fix is needed. The same again with what stands before it, until
those that are needed reach the goal. The dearest fix is then as cheap as it can be, then the second
dearest, and so on, and none can be left out.

Another user may rather pay otherwise. So the same search goes on without all fixes of one cost that
the cheapest has, for each such cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmcalib.derive.fixes import COSTS, Fix, Outcome, effective

Evaluate = Callable[[tuple[Fix, ...]], Outcome]


@dataclass(frozen=True, slots=True)
class Found:
    """What each fix did on its own, by name, and the best combination. `proven`: nothing in it can
    be left out, or none reaches the goal. `others` do too, each without a cost of the best;
    `mended` ones since less may do.
    """

    alone: Mapping[str, Outcome]
    best: tuple[Fix, ...]
    reached: bool
    proven: bool
    others: tuple[tuple[Fix, ...], ...] = ()
    mended: tuple[tuple[Fix, ...], ...] = ()


class _Spent(Exception):  # noqa: N818 - no error: the questions are used up
    """No more may be asked."""


@dataclass(slots=True)
class _Asked:
    """Every answer so far. What follows from one that more fixes never do harm is not asked."""

    evaluate: Evaluate
    left: int
    answers: dict[tuple[Fix, ...], Outcome]
    alone: dict[str, Outcome] = field(default_factory=dict)

    def ask(self, fixes: Iterable[Fix]) -> Outcome:
        chosen = effective(fixes)
        if chosen not in self.answers:
            if self.left == 0:
                raise _Spent
            self.left -= 1
            self.answers[chosen] = self.evaluate(chosen)
        return self.answers[chosen]

    def reaches(self, fixes: Iterable[Fix]) -> bool:
        chosen = effective(fixes)
        for known, outcome in self._combined():
            if outcome.reached and _within(known, chosen):
                return True
            if not outcome.reached and _within(chosen, known):
                return False
        return self.ask(chosen).reached

    def refuses(self, fixes: Iterable[Fix]) -> bool:
        """Whether vLLM refuses them, where it was asked."""
        return not self.reaches(fixes) and bool(
            self.answers.get(effective(fixes), self.answers[()]).refusal
        )

    def best(self) -> tuple[Fix, ...]:
        """Of what was really evaluated the one that lacks least; of several the smallest."""
        usable = {known: outcome for known, outcome in self._combined() if known}
        return min(usable, key=lambda k: (usable[k].lacking_bytes, len(k)), default=())

    def cheapest_reached(self) -> tuple[Fix, ...]:
        """The cheapest evaluated that reaches the goal, by its dearest fixes; else the best."""
        reached = [known for known, outcome in self._combined() if known and outcome.reached]
        return min(reached, key=_price) if reached else self.best()

    def _combined(self) -> Iterator[tuple[tuple[Fix, ...], Outcome]]:
        """What cannot stand beside the others, such as size hints, decides nothing."""
        for known, outcome in self.answers.items():
            if not outcome.refusal and all(fix.combines for fix in known):
                yield known, outcome


def _price(fixes: Iterable[Fix]) -> list[tuple[int, int]]:
    """To compare combinations by: the dearest fix first."""
    return sorted(((COSTS.index(fix.cost), fix.severity) for fix in fixes), reverse=True)


def _within(less: Sequence[Fix], more: Sequence[Fix]) -> bool:
    levels = {fix.knob: fix.level for fix in more}
    return all(levels.get(fix.knob, -1) >= fix.level for fix in less)


def cheapest(
    fixes: Sequence[Fix], base: Outcome, evaluate: Evaluate, most: int, more: int = 0
) -> Found:
    """Rehearse fixes on their own and combine them, with at most `most` evaluations, and `more` for
    what else reaches the goal. `base` is the outcome without any; `untried` ones are left alone.
    """
    asked = _Asked(evaluate, most, {(): base})
    alone = asked.alone
    try:
        for fix in fixes:
            if fix.alone and not fix.untried:
                alone[fix.name] = asked.ask((fix,))
        best = _combined(_in_order_of_cost(fixes, asked), asked)
        proven = True
    except _Spent:
        best, proven = asked.cheapest_reached(), False
    if not best or not asked.answers[best].reached:
        return Found(alone, best, False, proven)
    asked.left = more
    row = _in_order_of_cost(fixes, asked)
    return Found(alone, best, True, proven, tuple(_others(best, row, asked)))


def _others(best: tuple[Fix, ...], row: list[Fix], asked: _Asked) -> Iterator[tuple[Fix, ...]]:
    """Without the dearest cost of the best first."""
    given = {best}
    for cost in sorted({fix.cost for fix in best} - {COSTS[0]}, key=COSTS.index, reverse=True):
        spared = [fix for fix in row if fix.cost != cost]
        try:
            other = _combined(spared, asked)
        except _Spent:
            return
        reaches = bool(other) and asked.answers[other].reached
        if reaches and other not in given and all(fix.cost != cost for fix in other):
            given.add(other)
            yield other


def _in_order_of_cost(fixes: Iterable[Fix], asked: _Asked) -> list[Fix]:
    """Those that may be combined, the cheapest first; at one price the one that brings most."""
    alone, gains = asked.alone, _gains(fixes, asked)
    refused = {fix.knob for fix in fixes if fix.name in alone and alone[fix.name].refusal}
    usable = [f for f in fixes if f.combines and not f.untried and f.knob not in refused]
    return sorted(usable, key=lambda f: (COSTS.index(f.cost), f.severity, -gains.get(f.knob, 0)))


def _gains(fixes: Iterable[Fix], asked: _Asked) -> dict[str, int]:
    """Bytes that each knob brought on its own, at the level that was tried."""
    gains: dict[str, int] = {}
    for fix in fixes:
        one = asked.alone.get(fix.name)
        if one is not None and not one.refusal:
            gain = asked.answers[()].lacking_bytes - one.lacking_bytes
            gains[fix.knob] = max(gain, gains.get(fix.knob, 0))
    return gains


def _combined(row: list[Fix], asked: _Asked) -> tuple[Fix, ...]:
    """The best combination. Raises _Spent where that cannot be told with what is left."""
    gains = _gains(row, asked)
    first = _enough(row, (), gains, asked)
    if asked.reaches(row[:first]):
        row = row[:first]
    if not asked.reaches(row):
        row = _accepted(row, asked)
        if not asked.reaches(row):
            return asked.best()
    needed: list[Fix] = []
    while count := _shortest(row, needed, gains, asked):
        needed, row = [row[count - 1], *needed], row[: count - 1]
    best = effective(needed)
    return best if best and asked.ask(best).reached else asked.cheapest_reached()


def _accepted(row: list[Fix], asked: _Asked) -> list[Fix]:
    """As much of the row as vLLM does not refuse: without one fix, as offloading what is quantized;
    without the highest level of the dearest; without more and more of the dearest.
    """
    knobs = list(dict.fromkeys(fix.knob for fix in reversed(row)))
    rows = [row, *([fix for fix in row if fix.knob != knob] for knob in knobs[1:3])]
    rows += [row[:length] for length in range(len(row) - 1, -1, -1)]
    return next(one for one in rows if not one or not asked.refuses(one))


def _shortest(
    row: Sequence[Fix], needed: Sequence[Fix], gains: Mapping[str, int], asked: _Asked
) -> int:
    """The fewest from the row's start that reach the goal, guessed by what each gained alone."""
    low, high = -1, len(row)
    first = middle = _enough(row, needed, gains, asked)
    while high - low > 1:
        if not low < middle < high:
            middle = (low + high) // 2
        reached = asked.reaches([*row[:middle], *needed])
        low, high = (low, middle) if reached else (middle, high)
        # A good guess is confirmed by its neighbour; a bad one is no reason to go on from it.
        beside = middle - 1 if reached else middle + 1
        middle = beside if middle == first else (low + high) // 2
    return high


def _enough(
    row: Sequence[Fix], needed: Sequence[Fix], gains: Mapping[str, int], asked: _Asked
) -> int:
    for count in range(len(row) + 1):
        knobs = {fix.knob for fix in (*row[:count], *needed)}
        if sum(gains.get(knob, 0) for knob in knobs) >= asked.answers[()].lacking_bytes:
            return count
    return len(row) // 2
