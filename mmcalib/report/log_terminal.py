"""A server's log on the terminal, line by line beside the rehearsal of the same configuration."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.report.memory import memory_rows
from mmcalib.result.logged import Logged, PartApart
from mmcalib.result.memory import Memory
from mmcalib.sizes import GIB


def beside_the_log(log: Logged, memory: Memory, console: Console) -> None:
    """Print what it said, where the rehearsal parts from it, and what that makes of the plan."""
    console.print(Text("What uses the memory", style="bold"))
    console.print(_parts(log) if log.parts else _figures(log, memory))
    lines = [*log.failures, *log.notes]
    if log.release is not None and log.release.words not in " ".join(log.notes):
        lines.insert(0, f"the log is {log.release.words}")
    if log.sums and all(one.closes for one in log.sums):
        lines.append("the log's figures close: its parts and its KV cache are what it requested")
    for line in lines:
        console.print(Text(f"- {wording.plain(line)}"))
    if log.reason:
        style = "bold yellow" if log.planned_from == "log" else ""
        console.print(Text(f"→ {wording.plain(log.reason)}", style=style))
    console.print()


def _parts(log: Logged) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("the log", "rehearsed", "apart"):
        table.add_column(name, justify="right")
    for part in log.parts:
        style = "yellow" if part.apart else ""
        table.add_row(*(Text(cell) for cell in _cells(part)), style=style)
    said = log.memory
    for what, value in (
        ("KV cache, tokens", said.kv_cache_tokens),
        ("requests of full length at once", said.max_concurrency),
    ):
        if value is not None:
            table.add_row(Text(what), Text(wording.number(value)), Text(""), Text(""))
    return table


def _cells(part: PartApart) -> Iterator[str]:
    yield part.name
    if part.unit == "tokens":
        yield wording.number(part.log)
        yield wording.number(part.rehearsed)
        yield f"{part.difference:+,}" if part.difference else "equal"
    elif part.name == "KV cache of a token":
        yield f"{wording.number(part.log)} B"
        yield f"{wording.number(part.rehearsed)} B"
        yield f"{part.difference / part.log:+.1%}" if part.apart else "equal"
    else:
        yield wording.gib(part.log)
        yield wording.gib(part.rehearsed)
        shown = f"{part.difference / GIB:+.2f} GiB"
        yield "equal" if shown in {"+0.00 GiB", "-0.00 GiB"} else shown


def _figures(log: Logged, memory: Memory) -> Table:
    """Where it states nothing that a rehearsal could be held against."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("the log", "rehearsed"):
        table.add_column(name, justify="right")
    stated = {row.what: row.size for row in memory_rows(log.memory)}
    for row in memory_rows(memory):
        table.add_row(Text(row.what), Text(stated.get(row.what, "—")), Text(row.size))
    return table
