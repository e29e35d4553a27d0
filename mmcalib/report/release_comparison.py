"""Two releases of vLLM on the terminal: one table, what moved in it marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.domain.release_figure import FigureGroup, FigureValue
from mmcalib.result.release_comparison import ComparedFigure, ComparedRelease, ReleaseComparison
from mmcalib.sizes import GIB, KIB, MIB

_TITLES: Final[dict[FigureGroup, str]] = {
    "item_tokens": "Tokens per item",
    "item_cache_bytes": "Processor cache per item",
    "budget": "Budget and batch",
    "memory": "Memory, rehearsed",
    "engine": "What runs",
    "server": "The server's limits",
    "knob": "Options of items",
    "effect": "Effect on these items",
    "setting": "The configuration",
    "default": "Defaults that moved",
    "option": "Options of one alone",
}
# Of these, rows that are the same in both are left to --json.
_CHANGES_ONLY: Final = frozenset({"engine", "server", "knob", "default", "option"})
# As many new options as a reader looks through; --json has all.
_MOST_OPTIONS: Final = 12
_CELL_CHARS: Final = 44
# Beyond it a factor is plainer than per cent.
_FAR: Final = 1.5


def release_comparison(found: ReleaseComparison, console: Console) -> None:
    """Print it."""
    title = f"{found.model} on {found.gpu}: vLLM {found.before.vllm} and {found.after.vllm}"
    console.print()
    console.print(Text(wording.plain(title), style="bold"))
    console.print(_table(found))
    for one in (found.before, found.after):
        for problem in one.problems:
            console.print(Text(f"!! {_name(one)}: {wording.plain(problem)}", style="yellow"))
    console.print()
    console.print(_conclusion(found))


def _name(one: ComparedRelease) -> str:
    return f"{one.vllm} ({wording.plain(one.python) or 'here'})"


def _table(found: ReleaseComparison) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("setting or figure", overflow="fold")
    for one in (found.before, found.after):
        table.add_column(_name(one), justify="right", overflow="fold")
    table.add_column("change", justify="right", overflow="fold")
    for group, heading in _TITLES.items():
        rows = [figure for figure in found.figures if figure.group == group]
        shown = [row for row in rows if row.changed or group not in _CHANGES_ONLY]
        if not shown:
            continue
        table.add_row()
        table.add_row(Text(heading, style="bold"))
        kept = _fewest(shown) if group == "option" else shown
        for row in kept:
            style = "yellow" if row.changed else ""
            cells = (row.name, _value(row.before, row.unit), _value(row.after, row.unit))
            table.add_row(*map(Text, (*map(wording.plain, cells), _change(row))), style=style)
        if len(kept) < len(shown):
            table.add_row(Text(f"and {len(shown) - len(kept)} more: --json", style="dim"))
    return table


def _fewest(options: Sequence[ComparedFigure]) -> list[ComparedFigure]:
    """Those that are gone first: they end a start."""
    return sorted(options, key=lambda row: row.before is None)[:_MOST_OPTIONS]


def _value(value: float | str | None, unit: str) -> str:
    if value is None:
        return "—"
    if isinstance(value, str):
        return value if len(value) <= _CELL_CHARS else value[: _CELL_CHARS - 1] + "…"
    return _bytes(value) if unit == "bytes" else _number(value)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _bytes(value: float) -> str:
    for unit, name, digits in ((GIB, "GiB", 2), (MIB, "MiB", 1), (KIB, "KiB", 1)):
        if abs(value) >= unit:
            return f"{value / unit:,.{digits}f} {name}"
    return f"{value:,.0f} B"


def _change(row: ComparedFigure) -> str:
    if not row.changed:
        return "same"
    if row.difference is None:
        if row.before is not None and row.after is not None:
            return "changed"
        # Of the others it could not be had there: that has a line of its own.
        told = row.group in _CHANGES_ONLY
        return "" if not told else "new" if row.before is None else "gone"
    sign = "+" if row.difference > 0 else "−"
    by = _bytes(abs(row.difference)) if row.unit == "bytes" else _number(abs(row.difference))
    return f"{sign}{by}{_factor(row.before, row.after)}"


def _factor(before: FigureValue, after: FigureValue) -> str:
    """In per cent, or as a factor where it is far from one; empty where neither can be said."""
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return ""
    if before <= 0 or after <= 0:
        return ""
    if max(before, after) >= _FAR * min(before, after):
        return f" (×{after / before:.2f})" if after > before else f" (÷{before / after:.2f})"
    return f" ({(after - before) / before:+.1%})".replace("-", "−")


def _conclusion(found: ReleaseComparison) -> Text:
    """What decides: whether both start, and what is left for the KV cache."""
    starts = [None if one.rehearsal is None else one.rehearsal.starts for one in _both(found)]
    if starts[0] is not None and starts[1] is not None and starts[0] != starts[1]:
        starting, failing = _both(found) if starts[0] else reversed(_both(found))
        assert failing.rehearsal is not None
        text = (
            f"{_name(starting)} starts, {_name(failing)} would not: {failing.rehearsal.memory.note}"
        )
        return Text(wording.plain(text), style="bold red")
    moved = sum(figure.changed for figure in found.figures if figure.group not in _CHANGES_ONLY)
    refused = [
        f"{_name(one)} refuses {', '.join(one.refused)}" for one in _both(found) if one.refused
    ]
    few = "1 figure differs" if moved == 1 else f"{moved} figures differ"
    text = few if moved else "no figure of items, budget or memory differs"
    said = "; ".join([text, *refused])
    return Text(wording.plain(said), style="bold red" if refused else "bold")


def _both(found: ReleaseComparison) -> tuple[ComparedRelease, ComparedRelease]:
    return found.before, found.after
