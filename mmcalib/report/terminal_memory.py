"""Rehearsals, simulated traffic, plans and validations on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mmcalib import text
from mmcalib.checks.check import yaml_value
from mmcalib.derive.fixes import COSTS
from mmcalib.domain.memory import LiveTensor
from mmcalib.report import rows
from mmcalib.report.summary import corpus_line
from mmcalib.report.terminal import checks_table, fold, line, plain_table, print_section
from mmcalib.results.memory import Memory, Rehearsal, TrafficFigures
from mmcalib.results.part import CheckResult, verdict_words
from mmcalib.results.plan import Combination, Plan, TriedFix, ValidatedBudgets, Validation

# Most tensors to list at the peak: the others are small.
_NAMED_TENSORS: Final = 6
# Most rejected requests to show.
_REFUSED: Final = 4


def capacity(memory: Memory) -> str:
    """The KV cache in bytes, tokens and requests, or why the engine does not start."""
    if memory.fails_to_start:
        cure = ""
        if memory.kv_cache_tokens is not None and memory.most_utilization:
            cure = f". gpu_memory_utilization {memory.most_utilization:g} is the most that starts"
        return f"vLLM would not start: {memory.note}{cure}"
    return (
        f"KV cache {text.gib(memory.kv_cache_bytes)}, {text.number(memory.kv_cache_tokens)} "
        f"tokens, {text.number(memory.max_concurrency)} full-length requests at once"
    )


def print_rehearsals(rehearsals: Sequence[Rehearsal], console: Console) -> None:
    """Print one rehearsal, or several side by side."""
    first = rehearsals[0]
    names = [Path(one.config).name for one in rehearsals]
    # With its folders if another file has the same name.
    names = [
        text.printable(name if names.count(name) == 1 else one.config)
        for name, one in zip(names, rehearsals, strict=True)
    ]
    size, ranks = text.gib(first.memory.total_bytes), first.tensor_parallel_size
    rank = f", one rank of {ranks}" if ranks > 1 else ""
    encoder = f", encoder {first.encoder_attention}" if first.encoder_attention else ""
    title = f"{first.model} on {first.gpu} ({size}), vLLM {first.vllm}, rehearsed"
    engine = (
        f"model runner {first.runner}, {first.dtype}, attention {first.attention}{encoder}, "
        f"sampler {first.sampler}{rank}"
    )
    print_section(console, title, line(engine, "dim"))
    console.print()
    console.print(_rehearsals_table(rehearsals, names))
    for one, name in zip(rehearsals, names, strict=True):
        whose = f" of {name}" if len(rehearsals) > 1 else ""
        peak = max(one.phases, key=lambda phase: phase.peak_bytes, default=None)
        if peak is not None:
            own = f"scratch memory of {peak.scratch_operation}"
            scratch = (text.gib(peak.scratch_bytes), "", "", own)
            heading = f"Largest at the peak{whose}: {peak.name}, {text.gib(peak.peak_bytes)}"
            tensors = _tensor_table(peak.largest, [scratch] if peak.scratch_bytes else [])
            print_section(console, heading, tensors)
    assumptions = dict.fromkeys(words for one in rehearsals for words in one.assumptions)
    print_section(console, "Assumptions", *(line(f"- {words}") for words in assumptions))
    console.print()
    for one, name in zip(rehearsals, names, strict=True):
        whose = f"{name}: " if name else ""
        style = "bold green" if one.starts else "bold red"
        console.print(line(f"{whose}{capacity(one.memory)}", style))


def _rehearsals_table(rehearsals: Sequence[Rehearsal], names: Sequence[str]) -> Table:
    heads = names if len(names) > 1 else ["" for _ in names]
    columns = [Column(), *(Column(head, justify="right") for head in heads), Column()]
    table = plain_table(columns)
    for row in zip(*(rows.rehearsed_rows(one.memory) for one in rehearsals), strict=False):
        what, _, label = row[0]
        sizes = [Text(size) for _, size, _ in row]
        style = "bold" if what.startswith("KV cache") else ""
        table.add_row(Text(what), *sizes, Text(label, style="dim"), style=style)
    budgets = [one.budget for one in rehearsals]
    if any(budgets):
        tokens = [
            f"{text.number(b.encoder_budget_tokens)} tokens, {rows.profile(b)}" if b else "—"
            for b in budgets
        ]
        contexts = [text.number(one.max_model_len) for one in rehearsals]
        for what, cells in (("context, tokens", contexts), ("encoder budget, profiled", tokens)):
            table.add_row(Text(what), *map(Text, cells), Text("computed", "dim"))
    return table


def _tensor_table(largest: Sequence[LiveTensor], above: Sequence[rows.Row] = ()) -> Table:
    cells = map(rows.tensor_cells, largest[:_NAMED_TENSORS])
    shown = [*above, *(tuple(map(text.printable, row)) for row in cells)]
    return plain_table([fold("", "right"), fold(), fold(), fold()], shown)


def print_traffic(traffic: TrafficFigures, gpu: str, console: Console) -> None:
    """Print the memory and cache use of simulated serving."""
    columns = [Column(), Column(justify="right"), Column(style="dim")]
    print_section(
        console,
        f"{text.plural(traffic.requests, 'request')} on {gpu}, rehearsed",
        plain_table(columns, rows.traffic_rows(traffic)),
        *(line(f"rejected: {words}", "yellow") for words in traffic.refused[:_REFUSED]),
    )
    if traffic.highest is not None:
        tensors = _tensor_table(traffic.highest.largest)
        print_section(console, rows.highest_line(traffic), tensors)
    console.print()
    console.print(Text(rows.traffic_line(traffic), style=rows.STYLES[traffic.status]))


def print_plan(plan: Plan, console: Console) -> None:
    memory, lacking = plan.memory, plan.lacking_bytes
    title = f"{plan.model} on {plan.gpu} ({text.gib(memory.total_bytes)}), vLLM {plan.vllm}"
    kept = f"; keeping {', '.join(plan.kept)}" if plan.kept else ""
    short = f"; {text.gib(lacking)} of KV cache missing" if lacking >= text.SHOWN_BYTES else ""
    print_section(
        console,
        f"{title}, rehearsed",
        line(f"Now: {capacity(memory)}"),
        line(f"Goal: {plan.goal}{kept}{short}"),
    )
    _print_reserved(plan.reserved, console)
    logged = [*plan.log.failures, *plan.log.notes] if plan.log else []
    if logged:
        print_section(console, "From the log", *(line(f"- {words}") for words in logged))
    if plan.fixes:
        print_section(console, "Each fix on its own", _fixes_table(plan.fixes))
        console.print()
        for fix in plan.fixes:
            if fix.problem:
                console.print(line(f"- {fix.flags}, not rehearsed: {fix.problem} ({fix.price})"))
            elif fix.warning:
                console.print(line(f"- {fix.flags}: {fix.warning}"))
    print_section(console, "Assumptions", *(line(f"- {words}") for words in plan.assumptions))
    console.print()
    _print_conclusion(plan, console)


def _missing(nbytes: int | None) -> str:
    """The missing KV cache. vLLM may not start for another reason than its size."""
    return "no start" if nbytes is not None and nbytes < text.SHOWN_BYTES else text.gib(nbytes)


def _fixes_table(fixes: Sequence[TriedFix]) -> Table:
    """Print each fix above its price, as a column of its own would break both within words."""
    figures = [Column(name, justify="right", no_wrap=True) for name in ("KV cache", "missing")]
    table = plain_table([fold(), *figures])
    for cost in COSTS:
        of_this_cost = [fix for fix in fixes if fix.cost == cost and not fix.problem]
        if of_this_cost:
            table.add_row(Text(f"costs {cost}"), style="dim")
        for fix in of_this_cost:
            table.add_row(
                Text(f"  {text.printable(fix.flags)}\n    {text.printable(fix.price)}"),
                Text(text.room(fix.kv_cache_bytes)),
                Text("enough" if fix.reaches else _missing(fix.lacking_bytes)),
                style="green" if fix.reaches and not fix.warning else "",
            )
    return table


def _print_reserved(check: CheckResult | None, console: Console) -> None:
    if check is None:
        return
    finding = f"{rows.MARKS[check.status]}  {rows.check_line(check)}"
    console.print(Text(finding, style=rows.STYLES[check.status]))
    for remedy in check.remedies:
        console.print(line(f"→ {remedy}", "dim"))


def _print_conclusion(plan: Plan, console: Console) -> None:
    if plan.verdict == "reached already":
        reached = "The goal is already met"
        if plan.log is not None and plan.log.oom is not None:
            reached = "These options leave the memory that the server in the log needed"
        console.print(line(f"{reached}: {capacity(plan.memory)}", "bold green"))
        return
    best = plan.combination
    if plan.verdict == "under-reserved":
        words = "The goal can be met, but no fix reserves enough memory for load"
        console.print(Text(words, style="bold red"))
        if best is not None:
            console.print(line(f"with {best.flags}"), soft_wrap=True)
            _print_reserved(best.reserved, console)
        return
    if best is None:
        console.print(Text("No fix could be rehearsed", style="bold red"))
        return
    heading = (
        "The cheapest fix that meets the goal" if best.reaches else "The best fix is not enough"
    )
    console.print(Text(heading, style="bold green" if best.reaches else "bold red"))
    _print_combination(best, console, style="bold")
    if not best.proven:
        words = f"A cheaper fix may exist: the search stopped after {plan.rehearsals} rehearsals"
        console.print(Text(words, style="yellow"))
    for other in plan.others:
        # It also meets the goal, without some of the costs of the best.
        costs, others = ({fix.cost for fix in c.fixes} for c in (best, other))
        spared = [cost for cost in COSTS if cost in costs - others]
        heading = f"Or, without a cost in {' and '.join(spared)}" if spared else "Or"
        console.print(Text(heading, style="bold"))
        _print_combination(other, console)
    console.print(line(f"Add to vllm serve: {best.flags}"), soft_wrap=True)


def _print_combination(combination: Combination, console: Console, style: str = "") -> None:
    for fix in combination.fixes:
        console.print(line(f"  {fix.flags}"))
        console.print(line(f"      costs {fix.cost}: {fix.price}"))
    console.print(line(capacity(combination.memory), style))
    _print_reserved(combination.reserved, console)


_ITEMS = {
    "none": "",
    "corpus": "checked with your media",
    "made up": "checked with blank media of the largest admitted sizes",
}
_WHOSE = {"none": "Items", "corpus": "Your data", "made up": "Blank media"}
# A remedy of more characters is printed once.
_SHORT = 40


def print_validation(validation: Validation, console: Console) -> None:
    """Print the settings, the memory and all checks, the worst first."""
    gpu = f" on {validation.gpu}" if validation.gpu else ""
    source = f" ({validation.source})" if validation.source else ""
    model = f": {validation.model}{source}" if validation.model else ""
    tool = validation.tool
    named = [name for name in ("vllm", "transformers", "torch") if name in tool]
    versions = ", ".join(f"{name} {tool[name]}" for name in named)
    print_section(
        console,
        f"{' '.join([validation.config, *validation.flags])}{model}{gpu}",
        *(line(words, "dim") for words in (versions, _ITEMS[validation.items]) if words),
    )
    if validation.engine_config:
        settings = [
            (text.printable(name), text.printable(yaml_value(value)))
            for name, value in validation.engine_config.items()
        ]
        print_section(console, "Settings in vLLM", plain_table([fold(), fold()], settings))
    if validation.corpus is not None:
        found = f"{_WHOSE[validation.items]}: {corpus_line(validation.corpus)}, measured"
        print_section(console, found)
    if validation.budget is not None:
        print_section(console, "Memory", _reserved_table(validation, validation.budget))
    checks = checks_table(list(_name_remedies_once(validation.checks)))
    words = verdict_words(validation.verdict, validation.checks)
    # The error that ends the command names a failure.
    passed = Text(f"PASS{words.removeprefix('pass')}", "bold green")
    print_section(console, "Checks", checks, *([passed] if validation.verdict == "pass" else []))


def _name_remedies_once(checks: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Print a long remedy of several checks once."""
    named: set[str] = set()
    for check in checks:
        again = check.remedy in named
        named |= {check.remedy} if len(check.remedy) > _SHORT else set()
        yield check.model_copy(update={"remedy": "same as above"}) if again else check


def _reserved_table(validation: Validation, budget: ValidatedBudgets) -> Table:
    memory = validation.memory
    config = (memory.config or memory.measured) if memory else None
    default = memory.default if memory else None
    compared = [
        rows.Column("default", budget.default, default or Memory()),
        rows.Column("config", budget.config, config or Memory()),
    ]
    taken = [
        (o.what, "", text.gib(o.nbytes), "computed") for o in (memory.options if memory else ())
    ]
    own_context = "max_model_len" in (validation.engine_config or {})
    heads = (
        "defaults, your context" if own_context else "vLLM defaults",
        "this file" if validation.config else "yours",
    )
    columns = [fold(), *(fold(head, "right") for head in heads), fold()]
    return plain_table(columns, [*rows.reserved_rows(compared), *taken])
