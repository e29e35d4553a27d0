"""`mmcalib diff`: what two calibrations, or two rehearsals, do not have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.document import print_document


def diff(
    old: Annotated[
        Path,
        typer.Argument(
            metavar="OLD", help="A folder of results, calibration.json, or `rehearse --json`'s."
        ),
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The other one.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object of lists of [what, old, new].")
    ] = False,
) -> None:
    """Compare two calibrations, or two rehearsals. Exit 0 also if they differ.

    Example: mmcalib diff out-before out
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mmcalib.admission.calibration import Calibration
    from mmcalib.report.differences import differences, rehearsal_differences
    from mmcalib.results.calibration import calibration_in, read_rehearsal

    files = calibration_in(old), calibration_in(new)
    before, after = map(read_rehearsal, files)
    if before and after:
        found, what = rehearsal_differences(before, after), "memory and encoder budget"
    else:
        found = differences(*map(Calibration.load, files))
        what = "settings, what is reserved, or checks"
    if as_json:
        print_document(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    if not found:
        console.print(f"no difference in {what}")
    for part, rows in found.items():
        table = Table(
            box=None, pad_edge=False, title=part, title_justify="left", title_style="bold"
        )
        for head in ("", str(old), str(new)):
            table.add_column(Text(head), overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        console.print()
