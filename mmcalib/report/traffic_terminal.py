"""Served requests on the terminal: the highest step beside what startup reserved, and why."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.report import words
from mmcalib.report.memory import tensor_table
from mmcalib.report.traffic_words import (
    CHOICES,
    choice_rows,
    highest_line,
    traffic_line,
    traffic_rows,
)
from mmcalib.result.traffic import ServedTraffic, TrafficFigures, WorstOrderFigures

# Refused requests that are shown.
_REFUSED = 4


def worst(found: WorstOrderFigures, gpu: str, console: Console) -> None:
    """Print what the worst order took, and where it lies."""
    title = (
        f"The worst of {wording.number(found.tried)} orders on {gpu}: "
        f"{wording.several(found.served.requests, 'request')} in "
        f"{wording.several(found.groups, 'group')}, rehearsed (seed {found.seed})"
    )
    _figures(found.served, title, console)
    said = f"written to {found.file}: each group comes when the one before it has its answers"
    console.print(Text(wording.plain(said), style="dim"), soft_wrap=True)


def served(found: TrafficFigures, gpu: str, console: Console) -> None:
    """Print what serving took."""
    title = f"{wording.several(found.requests, 'request')} served on {gpu}, rehearsed"
    _figures(found, title, console)


def choices_table(served: ServedTraffic) -> Table:
    """The calibrated configuration, and each other choice under it."""
    table = Table(box=None, pad_edge=False)
    for name in CHOICES:
        words = name in (CHOICES[0], CHOICES[-1])
        table.add_column(
            name,
            justify="left" if words else "right",
            overflow="fold" if words else "ellipsis",
            no_wrap=not words,
        )
    for row in choice_rows(served):
        table.add_row(*(Text(wording.plain(cell)) for cell in row))
    return table


def _figures(found: TrafficFigures, title: str, console: Console) -> None:
    console.print()
    console.print(Text(wording.plain(title), style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("", style="dim")
    for row in traffic_rows(found):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for line in found.refused[:_REFUSED]:
        console.print(Text(f"!! refused: {wording.plain(line)}", style="yellow"))
    if found.highest is not None:
        console.print()
        console.print(Text(wording.plain(highest_line(found.highest)), style="bold"))
        console.print(tensor_table(found.highest.largest))
    console.print()
    console.print(Text(traffic_line(found), style=words.STYLES[found.status]))
