"""A plan on the terminal: what is lacking, what each fix brings and costs, what to add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.derive.fixes import COSTS, Cost
from mmcalib.report import words
from mmcalib.results.memory import Memory
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Combination, Plan, TriedFix


def planned(plan: Plan, console: Console) -> None:
    """Print the whole plan."""
    console.print()
    size = wording.gib(plan.memory.total_bytes)
    title = f"{plan.model} on {plan.gpu} ({size}), vLLM {plan.vllm}, rehearsed"
    console.print(Text(wording.plain(title), style="bold"))
    for line in _as_it_is(plan):
        console.print(Text(wording.plain(line)))
    _reserved(plan.reserved, console)
    console.print()
    said = [*plan.log.failures, *plan.log.notes] if plan.log else []
    if said:
        console.print(Text("What the log says", style="bold"))
        for line in said:
            console.print(Text(f"- {wording.plain(line)}"))
        console.print()
    if plan.fixes:
        console.print(Text("Each fix on its own", style="bold"))
        console.print(_fixes(plan.fixes))
        console.print()
        for line in _remarks(plan.fixes):
            console.print(Text(f"- {wording.plain(line)}"))
        console.print()
    console.print(Text("Assumed", style="bold"))
    for line in plan.assumptions:
        console.print(Text(f"- {wording.plain(line)}"))
    console.print()
    _conclusion(plan, console)


def _as_it_is(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    if memory.kv_cache_tokens is None:
        yield f"As it is, it would not start: {memory.note}"
    else:
        yield f"As it is: {capacity(memory)}"
    lacking = (
        f"; {wording.gib(plan.lacking_bytes)} of KV cache lacking" if plan.lacking_bytes else ""
    )
    kept = f"; keeping {', '.join(plan.kept)}" if plan.kept else ""
    yield f"Goal: {plan.goal}{kept}{lacking}"


def capacity(memory: Memory) -> str:
    """The KV cache in bytes, tokens and requests."""
    return (
        f"KV cache {wording.gib(memory.kv_cache_bytes)}, {wording.number(memory.kv_cache_tokens)} "
        f"tokens, {wording.number(memory.max_concurrency)} requests of full length at once"
    )


def _fixes(fixes: Sequence[TriedFix]) -> Table:
    """Flags above their price: a column of its own would break both within words."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in ("KV cache", "lacking"):
        table.add_column(name, justify="right", no_wrap=True)
    tried = [fix for fix in fixes if not fix.problem]
    for cost in COSTS:
        of_this_cost = [fix for fix in tried if fix.cost == cost]
        if of_this_cost:
            table.add_row(Text(f"costs {cost}"), style="dim")
        for fix in of_this_cost:
            table.add_row(
                Text(f"  {wording.plain(fix.flags)}\n    {wording.plain(fix.price)}"),
                Text(wording.room(fix.kv_cache_bytes)),
                Text("reaches it" if fix.reaches else wording.gib(fix.lacking_bytes)),
                style="green" if fix.reaches and not fix.warning else "",
            )
    return table


def _remarks(fixes: Sequence[TriedFix]) -> Iterator[str]:
    for fix in fixes:
        if fix.problem or fix.warning:
            what = f"not rehearsed: {fix.problem}" if fix.problem else fix.warning
            yield f"{fix.flags}: {what}" + (f" ({fix.price})" if fix.problem else "")


def _reserved(check: CheckResult | None, console: Console) -> None:
    """Whether what startup reserves is enough under load (R4), in full."""
    if check is None:
        return
    line = f"{words.MARKS[check.status]}  {words.check_line(check)}"
    console.print(Text(line, style=words.STYLES[check.status]))
    for remedy in check.remedies:
        console.print(Text(f"→ {wording.plain(remedy)}", style="dim"))


def _conclusion(plan: Plan, console: Console) -> None:
    if plan.verdict == "reached already":
        found = "The goal is reached already"
        if plan.log is not None and plan.log.oom is not None:
            found = "With these options it has the room that the log's server lacked"
        text = f"{found}: {capacity(plan.memory)}"
        console.print(Text(wording.plain(text), style="bold green"))
        return
    best = plan.combination
    if plan.verdict == "under-reserved":
        text = "The goal is reached, and no fix of it reserves enough: it may run out of memory"
        console.print(Text(text, style="bold red"))
        if best is not None:
            console.print(Text(wording.plain(f"that is with {best.flags}")), soft_wrap=True)
            _reserved(best.reserved, console)
        return
    if best is None:
        console.print(Text("No fix can be rehearsed: nothing to propose", style="bold red"))
        return
    reached = best.reaches
    heading = "The cheapest that reaches the goal" if reached else "The best there is: not enough"
    console.print(Text(heading, style="bold green" if reached else "bold red"))
    for line in _prices(best):
        console.print(Text(wording.plain(line)))
    memory = best.memory
    starts = memory.kv_cache_tokens is not None
    result = capacity(memory) if starts else f"it would not start: {memory.note}"
    console.print(Text(wording.plain(result), style="bold"))
    _reserved(best.reserved, console)
    if not best.proven:
        text = f"{plan.rehearsals} rehearsals did not suffice to know if less would do"
        console.print(Text(text, style="yellow"))
    for other in plan.others:
        _other(other, best, console)
    console.print(Text(wording.plain(f"add to vllm serve: {best.flags}")), soft_wrap=True)


def _other(other: Combination, best: Combination, console: Console) -> None:
    """What also reaches the goal, headed by what it spares of what the best costs."""
    spared = [cost for cost in COSTS if cost in _costs(best) - _costs(other)]
    heading = f"Or, to spare {' and '.join(spared)}" if spared else "Or"
    console.print(Text(heading, style="bold"))
    for line in _prices(other):
        console.print(Text(wording.plain(line)))
    console.print(Text(wording.plain(capacity(other.memory))))
    _reserved(other.reserved, console)


def _costs(combination: Combination) -> set[Cost]:
    return {fix.cost for fix in combination.fixes}


def _prices(best: Combination) -> Iterator[str]:
    for fix in best.fixes:
        yield f"  {fix.flags}"
        yield f"      costs {fix.cost}: {fix.price}"
