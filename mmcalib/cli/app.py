"""The application: its commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from mmcalib.cli.check import check
from mmcalib.cli.merge import merge
from mmcalib.cli.models import models
from mmcalib.cli.plan import plan
from mmcalib.cli.rehearse import rehearse
from mmcalib.cli.report import report
from mmcalib.cli.run import run
from mmcalib.cli.scan import scan
from mmcalib.cli.validate import validate
from mmcalib.errors import MmcalibError
from mmcalib.version import __version__

INTERRUPTED = 130

app = typer.Typer(
    name="mmcalib",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
)
app.command("run")(run)
app.command("rehearse")(rehearse)
app.command("plan")(plan)
app.command("validate")(validate)
app.command("check")(check)
app.command("scan")(scan)
app.command("merge")(merge)
app.command("report")(report)
app.command("models")(models)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mmcalib {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Right-size vLLM for the media you really serve.

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media
    """


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 error, 2 usage, 3 the verdict is no, 130
    interrupted.
    """
    # A polite kill unwinds like an interrupt, so that the engine's processes end with this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        app()
    except MmcalibError as error:
        if os.environ.get("MMCALIB_DEBUG") == "1":
            raise
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  try: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
