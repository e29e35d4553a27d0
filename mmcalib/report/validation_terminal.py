"""A validation on the terminal: what the file says, what vLLM makes of it, what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.report import words
from mmcalib.report.terminal import checks_table, corpus_heading, corpus_table, verdict_line
from mmcalib.results.memory import Memory
from mmcalib.results.part import CheckResult
from mmcalib.results.validation import Validation

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
        console.print(_reserved(validation))
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
    table = _table()
    for name, value in (validation.engine_config or {}).items():
        shown = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 30)
        value_words = shown.removesuffix("\n").removesuffix("\n...")
        table.add_row(Text(wording.plain(name)), Text(wording.plain(value_words)))
    return table


def _reserved(validation: Validation) -> Table:
    own_context = "max_model_len" in (validation.engine_config or {})
    default = "defaults, your context" if own_context else "vLLM defaults"
    table = _table(default, "this file" if validation.config else "yours", "")
    for row in _rows(validation):
        table.add_row(*(Text(cell) for cell in row))
    return table


def _rows(validation: Validation) -> Iterator[words.Row]:
    if validation.budget is None:
        return
    memory = validation.memory
    default = memory.default if memory else None
    config = (memory.config or memory.measured) if memory else None
    yield from words.reserved_rows(
        [
            words.Column("default", validation.budget.default, default or Memory()),
            words.Column("config", validation.budget.config, config or Memory()),
        ]
    )
    for one in memory.options if memory else ():
        yield one.what, "", wording.gib(one.bytes), one.label


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, show_header=bool(headers))
    table.add_column("", overflow="fold")
    for header in headers or ("",):
        right = bool(header)
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    return table
