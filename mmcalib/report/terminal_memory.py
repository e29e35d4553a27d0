"""Rehearsals, simulated traffic, plans and validations on the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mmcalib import text
from mmcalib.checks.check import yaml_value
from mmcalib.domain.memory import LiveTensor
from mmcalib.remedies.log import FIGURES, LogAnswer
from mmcalib.remedies.memory import Proposal
from mmcalib.report import rows
from mmcalib.report.summary import corpus_line
from mmcalib.report.terminal import checks_table, folded, line, plain_table, print_section
from mmcalib.results.memory import Memory, Rehearsal, TrafficFigures
from mmcalib.results.part import verdict_words
from mmcalib.results.plan import Plan, TriedFixes, ValidatedBudgets, Validation

# Most tensors to list at the peak: the others are small.
_NAMED_TENSORS: Final = 6
# Most failures of a log to show, the last ones.
_FAILURES: Final = 2
_FAILURE_CHARS: Final = 380
# Most rejected requests to show.
_REFUSED: Final = 4


def capacity(memory: Memory) -> str:
    """The KV cache in bytes, tokens and requests, or why the engine does not start."""
    if memory.starts is False:
        remedy = ""
        if memory.kv_cache_tokens is not None and memory.most_utilization:
            remedy = f". gpu_memory_utilization {memory.most_utilization:g} is the most that starts"
        return f"vLLM would not start: {memory.note}{remedy}"
    return (
        f"KV cache {text.gib(memory.kv_cache_bytes)}, {text.number(memory.kv_cache_tokens)} "
        f"tokens, {text.number(memory.max_concurrency)} full-length requests at once"
    )


def print_rehearsals(
    rehearsals: Sequence[Rehearsal], console: Console, plan: str = "", *, verbose: bool = False
) -> None:
    """Print the verdict, then the figures of one or several side by side; `verbose` adds tensors
    and assumptions. `plan` is the command for what does not start.
    """
    first = rehearsals[0]
    names = [Path(one.config).name for one in rehearsals]
    # With its folders if another file has the same name.
    pairs = zip(names, rehearsals, strict=True)
    names = [name if names.count(name) == 1 else one.config for name, one in pairs]
    size, ranks = text.gib(first.memory.total_bytes), first.tensor_parallel_size
    rank = f", one rank of {ranks}" if ranks > 1 else ""
    encoder = f", encoder {first.encoder_attention}" if first.encoder_attention else ""
    title = f"{first.model} on {first.gpu} ({size}), vLLM {first.vllm}, rehearsed"
    mode = ", extensible KV cache" if first.memory.mode == "extensible" else ""
    engine = (
        f"model runner {first.runner}, {first.dtype}, attention {first.attention}{encoder}, "
        f"sampler {first.sampler}{mode}{rank}"
    )
    print_section(console, title, line(engine, "dim"))
    for one, name in zip(rehearsals, names, strict=True):
        whose = f"{name}: " if name else ""
        style = "bold green" if one.starts else "bold red"
        console.print(line(f"{whose}{capacity(one.memory)}", style))
    console.print()
    console.print(_rehearsals_table(rehearsals, names))
    if verbose:
        _print_details(rehearsals, names, console)
    if plan and not all(one.starts for one in rehearsals):
        console.print(line(f"→ {plan}", "bold"), soft_wrap=True)


def _print_details(rehearsals: Sequence[Rehearsal], names: Sequence[str], console: Console) -> None:
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


def _rehearsals_table(rehearsals: Sequence[Rehearsal], names: Sequence[str]) -> Table:
    heads = names if len(names) > 1 else ["" for _ in names]
    columns = [Column(), *(Column(line(head), justify="right") for head in heads), Column()]
    table = plain_table(columns)
    every = [{row[0]: row for row in rows.rehearsed_rows(one.memory)} for one in rehearsals]
    # Not all have each row; the longest has the order.
    for what in dict.fromkeys(chain(*sorted(every, key=len, reverse=True))):
        sizes = [Text(found[what][1] if what in found else "—") for found in every]
        label = next(found[what][2] for found in every if what in found)
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
    shown = [*above, *map(rows.tensor_cells, largest[:_NAMED_TENSORS])]
    return plain_table([folded("", "right"), folded(), folded(), folded()], shown)


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
        print_section(console, rows.highest_line(traffic), _tensor_table(traffic.highest.largest))
    console.print()
    console.print(Text(rows.traffic_sentence(traffic), style=rows.STYLES[traffic.status]))


def print_log(answer: LogAnswer, console: Console) -> None:
    """Print what a log answers by itself."""
    if answer.ending:
        console.print(line(answer.ending, "bold"))
    release = answer.vllm and f"vLLM {answer.vllm}"
    failed = f"failed ({answer.phase})" if answer.phase else "failed" * bool(answer.failures)
    subject = ", ".join(filter(None, [answer.model or "A server", release, failed]))
    print_section(console, f"{subject}: what the log says")
    if answer.others:
        starts = f"{len(answer.others) + 1} starts in this log; this is of {answer.start}"
        console.print(line(f"{starts}; --log FILE:LINE picks another:", "yellow"))
        for other in answer.others:
            console.print(line(f"  {other}", "yellow"))
    for failure in answer.failures[-_FAILURES:]:
        console.print(line(textwrap.shorten(failure, _FAILURE_CHARS, placeholder=" …"), "red"))
    if answer.missing_bytes:
        known = "needed_bytes" in answer.figures or answer.phase == "start"
        words = f"missing: {'' if known else 'at least '}{text.gib(answer.missing_bytes)}"
        console.print(line(words, "bold red"))
    cells = [(FIGURES[name], rows.figure(name, v)) for name, v in answer.figures.items()]
    pairs = [(*left, *right) for left, right in zip_longest(cells[::2], cells[1::2], fillvalue=())]
    console.print(
        plain_table([folded(), folded("", "right"), folded(), folded("", "right")], pairs)
    )
    _print_fixes(answer.fixes, "; computed from the log", console)
    if answer.failures and not answer.fixes:
        words = "no fix follows from the log alone"
        if answer.least:
            words += f". Next: {answer.least}"
        elif "total_bytes" not in answer.figures and answer.missing_bytes is not None:
            words += "; with --gpu NAME, one may"
        console.print(line(words))
    for note in answer.notes:
        console.print(line(f"- {note}", "dim"))


def _print_fixes(fixes: Sequence[Proposal], how: str, console: Console) -> None:
    for fix in fixes:
        console.print(line(f"  {fix.flags}", "bold"), soft_wrap=True)
        console.print(line(f"      costs {fix.cost}: {fix.price}{how}"))


def print_plan(plan: Plan, console: Console, *, verbose: bool = False) -> None:
    """Print the answer first; `verbose` adds all that was tried and assumed."""
    if plan.memory is None:
        return
    title = f"{plan.model} on {plan.gpu} ({text.gib(plan.memory.total_bytes)}), vLLM {plan.vllm}"
    print_section(console, f"{title}, rehearsed")
    _print_conclusion(plan, console)
    kept = f"; keeping {', '.join(plan.kept)}" if plan.kept else ""
    phase = plan.log.phase if plan.log is not None and plan.memory.starts is False else None
    now = f"failed ({phase}), as the log says" if phase else capacity(plan.memory)
    console.print(line(f"Goal: {plan.goal}{kept}. Now: {now}"))
    if plan.reserved is not None and plan.reserved.status != "pass" and plan.combination:
        console.print(checks_table([plan.reserved.model_copy(update={"remedy": ""})]))
    # The log's own figures beside those of its rehearsal.
    shown = [
        (FIGURES[name], rows.figure(name, plan.log.figures[name]), rows.figure(name, ours))
        for name in ("weights_bytes", "kv_cache_bytes", "kv_cache_tokens")
        if plan.logged is not None and plan.log is not None and name in plan.log.figures
        if (ours := getattr(plan.logged, name)) is not None
    ]
    if shown:
        columns = [folded(), folded("the log", "right"), folded("rehearsed", "right")]
        console.print(plain_table(columns, shown))
    if plan.anchored_bytes:
        words = "KV cache above: the log's figure plus the rehearsed difference"
        console.print(line(words, "dim"))
    for note in plan.notes:
        console.print(line(f"- {note}", "dim"))
    if verbose and plan.tried:
        print_section(console, "Tried", _tried_table(plan.tried))
        print_section(console, "Assumptions", *(line(f"- {words}") for words in plan.assumptions))
    if plan.combination is not None:
        # With an OOM to avoid, the plan leaves the other process its memory.
        stops = plan.log and "others_bytes" in plan.log.figures and not plan.oom
        add = "Stop the other process, and add to" if stops else "Add to"
        console.print()
        console.print(line(f"{add} vllm serve: {plan.combination.flags}", "bold"), soft_wrap=True)


def _tried_table(tried: Sequence[TriedFixes]) -> Table:
    """Print each combination in the order of the search."""
    figures = [Column(name, justify="right", no_wrap=True) for name in ("KV cache", "missing")]
    table = plain_table([folded(), *figures])
    for one in tried:
        # vLLM may not start for another reason than the size of the KV cache.
        little = one.lacking_bytes < text.SHOWN_BYTES
        missing = "no start" if little else text.gib(one.lacking_bytes)
        missing = "enough" if one.reaches else "rejected" if one.problem else missing
        style = "green" if one.reaches else ""
        cells = one.flags, text.remaining(one.kv_cache_bytes), missing
        table.add_row(*map(line, cells), style=style)
    return table


def _print_conclusion(plan: Plan, console: Console) -> None:
    best = plan.combination
    reserved = plan.reserved if best is None else best.reserved
    if plan.verdict in ("reached already", "not reproduced"):
        reached, style = "The goal is already met", "bold green"
        if plan.oom is not None:
            reached = "These options leave the memory that the server in the log needed"
        if plan.verdict == "not reproduced":
            reached, style = "The log's server failed, and its rehearsal starts", "bold red"
        console.print(line(f"{reached}: {capacity(plan.memory or Memory())}", style))
    elif best is None:
        words = "Nothing that keeps the model and the card reaches the goal"
        if plan.verdict == "under-reserved":
            words = "The goal can be met, but no fix leaves enough memory for load"
        console.print(line(f"{words}. The least that would: {plan.least}", "bold red"))
    else:
        console.print(Text("The least that meets the goal", style="bold green"))
        _print_fixes(best.fixes, "", console)
        before, after = (one.kv_cache_bytes or 0 for one in (plan.memory or Memory(), best.memory))
        less = f" ({text.gib(before - after)} less KV cache)" if before > after else ""
        console.print(line(f"{capacity(best.memory)}{less}", "bold"))
    if reserved is not None:
        console.print(checks_table([reserved]))
    if best is not None and not best.proven:
        words = f"Less may do: the search stopped after {plan.rehearsals} rehearsals"
        console.print(Text(words, style="yellow"))


_ITEMS = {
    "none": "",
    "corpus": "checked with your media",
    "made up": "checked with blank media of the largest admitted sizes",
}
_WHOSE = {"none": "Items", "corpus": "Your data", "made up": "Blank media"}


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
        settings = [(name, yaml_value(one)) for name, one in validation.engine_config.items()]
        print_section(console, "Settings in vLLM", plain_table([folded(), folded()], settings))
    if validation.corpus is not None:
        found = f"{_WHOSE[validation.items]}: {corpus_line(validation.corpus)}, measured"
        print_section(console, found)
    if validation.budget is not None:
        print_section(console, "Memory", _reserved_table(validation, validation.budget))
    words = verdict_words(validation.verdict, validation.checks)
    # The error that ends the command names a failure.
    passed = Text(f"PASS{words.removeprefix('pass')}", "bold green")
    shown = [passed] if validation.verdict == "pass" else []
    print_section(console, "Checks", checks_table(validation.checks), *shown)


def _reserved_table(validation: Validation, budget: ValidatedBudgets) -> Table:
    memory = validation.memory
    config = (memory.config or memory.measured) if memory else None
    default = memory.default if memory else None
    own_context = "max_model_len" in (validation.engine_config or {})
    before = "defaults, your context" if own_context else "vLLM defaults"
    after = "this file" if validation.config else "yours"
    compared = [
        rows.Column(before, budget.default, default or Memory()),
        rows.Column(after, budget.config, config or Memory()),
    ]
    options = memory.options if memory else ()
    taken = [(one.what, "", text.gib(one.nbytes), "computed") for one in options]
    columns = [folded(), *(folded(one.name, "right") for one in compared), folded()]
    return plain_table(columns, [*rows.reserved_rows(compared), *taken])
