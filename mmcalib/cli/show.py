"""`mmcalib show`: a calibration on the terminal again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.document import print_document

Results = Annotated[
    Path,
    typer.Argument(metavar="OUT", help="What `mmcalib run` wrote: its --out, or calibration.json."),
]


def show(
    source: Results = Path("out"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print calibration.json, checked and whole.")
    ] = False,
    as_issue: Annotated[
        bool, typer.Option("--issue", help="Print 30 lines of Markdown to paste into an issue.")
    ] = False,
) -> None:
    """Show the summary that `mmcalib run` ended with, from calibration.json alone.

    Example: mmcalib show out
    """
    from rich.console import Console

    from mmcalib.report.issue import issue
    from mmcalib.report.terminal import summary
    from mmcalib.result_files import calibration_in
    from mmcalib.workflows.gate.calibration import Calibration

    calibration = Calibration.load(calibration_in(source))
    if as_json:
        print_document(calibration.to_json())
        return
    if as_issue:
        sys.stdout.write(issue(calibration))
        return
    summary(calibration, Console(highlight=False))
