"""`mmcalib doctor`: what is installed, what will work, and what to type where it will not."""

from __future__ import annotations

from typing import Annotated

import typer

from mmcalib.cli.options import Quiet


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Look at the installation and the machine: what works, and what to type where not.

    Example: mmcalib doctor
    """
    from rich.console import Console

    from mmcalib.cli.document import print_json
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.doctor_terminal import diagnosed
    from mmcalib.results.part import first_failed
    from mmcalib.workflows.doctor import examine

    console = Console(stderr=True, highlight=False)
    found = examine(progress=Silent() if quiet else Terminal(console))
    if as_json:
        print_json(found)
    if not quiet:
        diagnosed(found, console)
    if found.verdict == "fail":
        failed = first_failed(found.checks)
        raise VerdictError(
            f"mmcalib run cannot work here: {failed.name}: {failed.detail}", hint=failed.remedy
        )
