"""One subject's whole hearing: kept examples, requests that stand alone, orders, and shrinking."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Protocol

from judging.composition import Composition
from judging.drawing import drawn, shrunk
from judging.pool import Pool
from judging.request import Order, innocent, summary
from judging.results import Example, Result, Results, keep_example, kept_examples
from judging.subject import Subject
from judging.verdict import Verdict

# In flight at once where order does not matter: one is decoded while another is computed.
_AT_ONCE = 4
# Of all requests about so many stand in an order of several.
_SHARE_IN_ORDER = 0.1
# And so many are every medium by itself, every field, and every part, message and URL.
_SHARE_OF_EACH = 0.15
_MEAN_ORDER = 3
# The model may be shrunk to the same example by many ways.
_SHRINK_S = 45.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`requests` per subject; nothing is begun after `deadline` (of time.monotonic)."""

    requests: int
    seed: int
    deadline: float
    examples: Path
    shrink: bool


class Asks(Protocol):
    """Whoever is asked in order."""

    def lets_in(self, order: Order) -> bool: ...

    def forget(self) -> None: ...

    def in_order(self, order: Order) -> list[Verdict]: ...

    def after(self, order: Order) -> Verdict: ...


def hear(
    subject: Subject,
    judge: Asks,
    pool: Pool,
    fields: Sequence[str],
    results: Results,
    plan: Plan,
    say: Callable[[str], None],
) -> list[Result]:
    """Everything asked, and new examples kept; `fields` are those of the schema."""
    composition = Composition(subject, pool, fields)
    seed = plan.seed + sum(subject.key.encode())
    share = round(plan.requests * _SHARE_OF_EACH)
    each = [(request,) for request in composition.each(share, seed)]
    of_fields = [(request,) for request in composition.fields(share, seed)]
    of_tables = [(request,) for request in composition.tables(share, seed)]
    in_order = round(plan.requests * _SHARE_IN_ORDER / _MEAN_ORDER)
    listed = len(each) + len(of_fields) + len(of_tables)
    alone = max(1, plan.requests - in_order * _MEAN_ORDER - listed)
    drawn_alone = drawn(composition.alone(), alone, seed)
    series: list[tuple[str, Sequence[Order], int]] = [
        ("kept", [e.order for e in kept_examples(plan.examples) if e.subject == subject.key], 1),
        ("alone", [one for one in drawn_alone if one not in each], _AT_ONCE),
        ("tables", of_tables, _AT_ONCE),
        ("fields", of_fields, _AT_ONCE),
        ("each", each, _AT_ONCE),
        ("order", drawn(composition.orders(), max(1, in_order), seed), 1),
    ]
    found: list[Result] = []
    for name, orders, at_once in series:
        numbered = name if name == "kept" else f"{name}-{plan.seed}"
        found += _asked(subject, judge, numbered, orders, at_once, results, plan, say)
    if plan.shrink:
        _shrink(subject, judge, composition, found, alone, max(1, in_order), plan, say)
    return found


def _asked(
    subject: Subject,
    judge: Asks,
    series: str,
    orders: Iterable[Order],
    at_once: int,
    results: Results,
    plan: Plan,
    say: Callable[[str], None],
) -> list[Result]:
    """First what `check` lets in, as a server behind it has it; then the rest, one at a time and
    each of a fresh server, since what vLLM refuses leaves its caches unlike each other. What a
    server refuses and `check` does not is followed by a plain request with the same medium.
    """

    def known(number: int, order: Order) -> Result | None:
        return results.get(subject.key, series, number, order)

    def ask(numbered: tuple[int, Order], fresh: bool) -> Result | None:
        number, order = numbered
        started = time.monotonic()
        if started > plan.deadline:
            return None
        if fresh:
            judge.forget()
        verdicts = judge.in_order(order)
        last, next_one = verdicts[-1], innocent(order[-1])
        if last.status != 200 and last.answer != "no" and next_one:
            order = (*order, next_one)
            verdicts.append(judge.after(order))
        took = time.monotonic() - started
        return Result(
            subject.key, series, number, results.made_of, order, tuple(verdicts), round(took, 3)
        )

    def lets_in(numbered: tuple[int, Order]) -> bool:
        return time.monotonic() < plan.deadline and judge.lets_in(numbered[1])

    def heard(result: Result) -> None:
        results.add(result)
        for request, verdict in zip(result.order, result.verdicts, strict=True):
            if verdict.disagrees:
                say(f"{subject.key}: {verdict.kind}: {summary(request)}")

    missing = [pair for pair in enumerate(orders) if known(*pair) is None]
    with ThreadPoolExecutor(at_once) as threads:
        let_in = list(compress(missing, threads.map(lets_in, missing)))
        judge.forget()
        for result in threads.map(partial(ask, fresh=at_once == 1), let_in):
            if result:
                heard(result)
    for pair in missing:
        if pair not in let_in and (result := ask(pair, fresh=True)):
            heard(result)
    return [one for pair in enumerate(orders) if (one := known(*pair))]


def _shrink(
    subject: Subject,
    judge: Asks,
    composition: Composition,
    found: Sequence[Result],
    alone: int,
    in_order: int,
    plan: Plan,
    say: Callable[[str], None],
) -> None:
    """One example per cause; what was met before another order is left as it is."""
    for cause in dict.fromkeys(result.cause for result in found if result.cause):
        all_of_it = [one for one in found if one.cause == cause]
        first = min(all_of_it, key=lambda one: len(" ".join(map(summary, one.order))))
        if first.series == "kept" or time.monotonic() > plan.deadline:
            continue
        single = len(first.order) == 1

        def fails(order: Order, cause: str = cause) -> bool:
            judge.forget()
            return any(verdict.cause == cause for verdict in judge.in_order(order))

        if not fails(first.order):
            say(f"{subject.key}: not so when asked again, alone: {cause}")
            continue
        strategy = composition.alone() if single else composition.orders()
        known = {one.order: one.cause == cause for one in found}
        count = alone if single else in_order
        smallest = first.order
        if first.series.partition("-")[0] not in ("each", "fields", "tables"):
            drawn_from = count, plan.seed + sum(subject.key.encode())
            smallest = shrunk(strategy, *drawn_from, fails, known, _SHRINK_S) or smallest
        if keep_example(plan.examples, Example(subject.key, cause, smallest)):
            say(f"{subject.key}: kept: {' → '.join(map(summary, smallest))}")
