"""`mmcalib merge`: the censuses of several scans as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.command import command
from mmcalib.cli.options import Force, Quiet, Strict
from mmcalib.options.corpus import Out


@command
def merge(
    censuses: Annotated[
        list[Path],
        typer.Argument(metavar="CENSUS.json...", help="What scans wrote, or their folders."),
    ],
    out: Out = Path("out"),
    strict: Strict = False,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Add up the censuses of shards, or of several corpora, and their lists of what was skipped.

    Example: mmcalib merge part-1/census.json part-2/census.json --out ./whole
    """
    import shlex

    from rich.console import Console

    from mmcalib.cli.census import leave
    from mmcalib.cli.output import claim
    from mmcalib.workflows.scan import merge as merge_all

    claim(out, force=force)
    found = merge_all(censuses)
    console = Console(stderr=True, highlight=False)
    source = f"--census {shlex.quote(str(out))}"
    leave(found, out, console, source=source, as_json=as_json, quiet=quiet, strict=strict)
