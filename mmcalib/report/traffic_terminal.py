"""Served requests on the terminal: the highest step beside what startup reserved, and why."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.report import words
from mmcalib.report.memory import tensor_table
from mmcalib.report.traffic_words import highest_line, traffic_line, traffic_rows
from mmcalib.results.memory import TrafficFigures

# Refused requests that are shown.
_REFUSED = 4


def served(found: TrafficFigures, gpu: str, console: Console) -> None:
    """Print what serving took."""
    title = f"{wording.several(found.requests, 'request')} served on {gpu}, rehearsed"
    _figures(found, title, console)


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
