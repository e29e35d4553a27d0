"""Plan, log, validation, compared releases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import text as wording
from mmcalib.derive.fixes import COSTS, Cost
from mmcalib.report import rows
from mmcalib.report.terminal import checks_table, corpus_heading, corpus_table, verdict_line
from mmcalib.results.memory import Memory
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Combination, Plan, TriedFix
from mmcalib.results.validation import Validation


def planned(plan: Plan, console: Console) -> None:
    """Print the whole plan."""
    console.print()
    size = wording.gib(plan.memory.total_bytes)
    title = f"{plan.model} on {plan.gpu} ({size}), vLLM {plan.vllm}, rehearsed"
    console.print(Text(wording.plain(title), style="bold"))
    for line in _as_it_is(plan):
        console.print(Text(wording.plain(line)))
    _print_reserved(plan.reserved, console)
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
    _print_conclusion(plan, console)


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


def _print_reserved(check: CheckResult | None, console: Console) -> None:
    """Whether what startup reserves is enough under load (R4), in full."""
    if check is None:
        return
    line = f"{rows.MARKS[check.status]}  {rows.check_line(check)}"
    console.print(Text(line, style=rows.STYLES[check.status]))
    for remedy in check.remedies:
        console.print(Text(f"→ {wording.plain(remedy)}", style="dim"))


def _print_conclusion(plan: Plan, console: Console) -> None:
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
            _print_reserved(best.reserved, console)
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
    _print_reserved(best.reserved, console)
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
    _print_reserved(other.reserved, console)


def _costs(combination: Combination) -> set[Cost]:
    return {fix.cost for fix in combination.fixes}


def _prices(best: Combination) -> Iterator[str]:
    for fix in best.fixes:
        yield f"  {fix.flags}"
        yield f"      costs {fix.cost}: {fix.price}"


_ITEMS = {
    "none": "",
    "corpus": "tried with your media",
    "made up": "tried with blank media of the largest sizes that it admits",
}
_WHOSE = {"none": "Items", "corpus": "Your corpus", "made up": "Blank media"}
# Characters of a remedy that is said again sooner than referred to.
_SHORT = 40


def validated(validation: Validation, console: Console) -> None:
    """Print everything that was found."""
    console.print()
    console.print(Text(wording.plain(_title(validation)), style="bold"))
    for line in filter(None, (_versions(validation), _ITEMS[validation.items])):
        console.print(Text(wording.plain(line), style="dim"))
    if validation.engine_config:
        console.print()
        console.print(Text("What vLLM reads", style="bold"))
        console.print(_settings(validation))
    if validation.corpus is not None:
        console.print()
        heading = corpus_heading(validation.corpus, _WHOSE[validation.items])
        console.print(Text(heading, style="bold"))
        console.print(corpus_table(validation.corpus))
    if validation.budget is not None:
        console.print()
        console.print(Text("What vLLM reserves", style="bold"))
        console.print(_reserved_table(validation))
    console.print()
    console.print(Text("Checks", style="bold"))
    console.print(checks_table(list(_said_once(validation.checks)), in_full=True))
    console.print(verdict_line(validation.verdict, validation.checks))


def _said_once(checks: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Checks of one cure name it once, where it is long."""
    said: set[str] = set()
    for check in checks:
        again = check.remedy in said
        said |= {check.remedy} if len(check.remedy) > _SHORT else set()
        yield check.model_copy(update={"remedy": "the same"}) if again else check


def _title(validation: Validation) -> str:
    where = f" on {validation.gpu}" if validation.gpu else ""
    source = f" ({validation.source})" if validation.source else ""
    model = f": {validation.model}{source}" if validation.model else ""
    return f"{' '.join([validation.config, *validation.flags])}{model}{where}"


def _versions(validation: Validation) -> str:
    shown = ("vllm", "transformers", "torch")
    return ", ".join(f"{name} {validation.tool[name]}" for name in shown if name in validation.tool)


def _settings(validation: Validation) -> Table:
    table = _validation_table()
    for name, value in (validation.engine_config or {}).items():
        shown = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 30)
        value_words = shown.removesuffix("\n").removesuffix("\n...")
        table.add_row(Text(wording.plain(name)), Text(wording.plain(value_words)))
    return table


def _reserved_table(validation: Validation) -> Table:
    own_context = "max_model_len" in (validation.engine_config or {})
    default = "defaults, your context" if own_context else "vLLM defaults"
    table = _validation_table(default, "this file" if validation.config else "yours", "")
    for row in _rows(validation):
        table.add_row(*(Text(cell) for cell in row))
    return table


def _rows(validation: Validation) -> Iterator[rows.Row]:
    if validation.budget is None:
        return
    memory = validation.memory
    default = memory.default if memory else None
    config = (memory.config or memory.measured) if memory else None
    yield from rows.reserved_rows(
        [
            rows.Column("default", validation.budget.default, default or Memory()),
            rows.Column("config", validation.budget.config, config or Memory()),
        ]
    )
    for one in memory.options if memory else ():
        yield one.what, "", wording.gib(one.nbytes), "computed"


def _validation_table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, show_header=bool(headers))
    table.add_column("", overflow="fold")
    for header in headers or ("",):
        right = bool(header)
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    return table
