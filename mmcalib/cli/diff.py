"""`mmcalib diff`: what two calibrations do not have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.document import print_document


def diff(
    old: Annotated[
        Path, typer.Argument(metavar="OLD", help="A folder of results, or calibration.json.")
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The other one.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object of lists of [what, old, new].")
    ] = False,
) -> None:
    """Compare two calibrations: settings, what is reserved, checks. Exit 0 also if they differ.

    Example: mmcalib diff out-before out
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mmcalib.report.differences import differences
    from mmcalib.result_files import calibration_in
    from mmcalib.workflows.gate.calibration import Calibration

    found = differences(*(Calibration.load(calibration_in(one)) for one in (old, new)))
    if as_json:
        print_document(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    if not found:
        console.print("no difference in settings, what is reserved, or checks")
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
