"""`mmcalib drift`: does today's traffic still fit what was calibrated?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.command import command
from mmcalib.cli.options import Quiet
from mmcalib.options.corpus import AllowedRoot, Requests


@command
def drift(
    *,
    calibration: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="The calibration.json that `mmcalib run` wrote, or its folder."
        ),
    ] = Path("out"),
    requests: Requests = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="URL", help="/metrics of a vLLM server, or a file with its text."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="An earlier scrape: only what was added counts."),
    ] = None,
    tolerate: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of requests that may be refused."),
    ] = 0.01,
    allowed_local_media_path: AllowedRoot = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Say whether traffic still fits a calibration, figure by figure; exit 3 if not.

    Example: mmcalib drift --calibration out --requests today.jsonl
    """
    from rich.console import Console

    from mmcalib.cli.document import print_json
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import UsageError, VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.drift_terminal import drift_lines, drift_table
    from mmcalib.result_files import calibration_in
    from mmcalib.workflows.drift.find import drift_of_metrics, drift_of_requests
    from mmcalib.workflows.gate.calibration import Calibration

    if bool(requests) == (metrics is not None):
        raise UsageError("traffic is read from one place", hint="--requests FILE or --metrics URL")
    if since is not None and metrics is None:
        raise UsageError("--since needs --metrics", hint="--metrics URL --since FILE")
    if not 0 <= tolerate < 1:
        raise UsageError(f"--tolerate {tolerate} is no share", hint="--tolerate 0.01")
    known = Calibration.load(calibration_in(calibration))
    console = Console(stderr=True, highlight=False)
    if metrics is not None:
        found = drift_of_metrics(known, metrics, since, tolerated=tolerate)
    else:
        found = drift_of_requests(
            known,
            requests or [],
            tolerated=tolerate,
            allowed_root=allowed_local_media_path,
            progress=Silent() if quiet else Terminal(console),
        )
    if as_json:
        print_json(found)
    if not quiet:
        console.print(drift_table(found))
        for line in drift_lines(found):
            console.print(line, markup=False, soft_wrap=True)
    if found.shifted:
        names = ", ".join(figure.name for figure in found.shifted)
        raise VerdictError(
            f"traffic has shifted, by {found.requests} requests: {names}",
            hint="mmcalib run with --requests of today's traffic",
        )
    if not quiet:
        console.print(f"fits, by {found.requests} requests", markup=False, style="bold")
