"""`mmcalib report`: the reports of a calibration, rendered again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.choices import either, none_of
from mmcalib.cli.command import MORE
from mmcalib.cli.document import print_document
from mmcalib.cli.emit import Emit, emit_again
from mmcalib.cli.options import Quiet
from mmcalib.report.formats import REPORT_NAMES

NoThumbnails = Annotated[
    bool,
    typer.Option(
        "--no-thumbnails",
        help="No pictures of the costliest items in report.html.",
        rich_help_panel=MORE,
    ),
]
RedactPaths = Annotated[
    bool,
    typer.Option(
        "--redact-paths", help="Name no file of the corpus in the reports.", rich_help_panel=MORE
    ),
]


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|calibration.json", help="What `mmcalib run` wrote: its --out, or the file."
        ),
    ] = Path("out"),
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Default: report.html or report.md beside the calibration, of the others standard "
            "output, which is -.",
        ),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"{either(REPORT_NAMES)}.",
        ),
    ] = REPORT_NAMES[0],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder or file of the corpus, whose pictures the page may show; may be repeated.",
        ),
    ] = None,
    emit: Emit = None,
    no_thumbnails: NoThumbnails = False,
    redact_paths: RedactPaths = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Overwrite what --out names; emit although the verdict is fail."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Render the report of a calibration, from calibration.json alone. Needs no vLLM.

    Example: mmcalib report out --data ./media --out report.html

    Example: mmcalib report out --format text

    Example: mmcalib report out --emit args
    """
    import shlex

    from rich.console import Console

    from mmcalib.admission.calibration import Calibration
    from mmcalib.errors import UsageError
    from mmcalib.files import write_text
    from mmcalib.report.html.canvas import undrawn_words
    from mmcalib.report.html.roots import Roots
    from mmcalib.report.report import REPORTS, Report
    from mmcalib.report.terminal import summary
    from mmcalib.report.written import WrittenReport
    from mmcalib.results.calibration import calibration_in

    if format_ not in REPORT_NAMES:
        raise UsageError(
            f"--format {format_} is {none_of(REPORT_NAMES)}", hint=f"--format {REPORT_NAMES[0]}"
        )
    found = calibration_in(source)
    to = out or found.with_name(f"report.{format_}")
    # The report that `mmcalib run` wrote is made anew; nothing else is lost by accident.
    printed = str(out) == "-" or (out is None and format_ in ("text", "issue"))
    if out is not None and not printed and out.exists() and not force:
        raise UsageError(f"--out {out} exists", hint="--force, or another --out")
    if to.is_dir():
        raise UsageError(f"--out {to} is a folder", hint=f"--out {to}/report.{format_}")
    for path in data or []:
        if not path.exists():
            raise UsageError(
                f"--data {path}: no such file or folder",
                hint="--data DIR: the folder that `mmcalib run` read",
            )
    if emit is not None:
        to_file = None if printed else out
        emit_again(
            found,
            emit,
            to_file,
            redact_paths=redact_paths,
            force=force,
            as_json=as_json,
            quiet=quiet,
        )
        return
    calibration = Calibration.load(found)
    if printed and as_json:
        raise UsageError("the report and --json both want standard output", hint="--out FILE")
    made = Report(
        calibration,
        f"vllm serve --config {shlex.quote(str(found.with_name('engine.yaml')))}",
        thumbnails=not no_thumbnails,
        redact_paths=redact_paths,
        roots=Roots.of(data or []),
    )
    if printed and format_ == "text":
        summary(made.shown, Console(highlight=False))
        return
    if printed:
        sys.stdout.write(REPORTS[format_](made))
        return
    write_text(to, REPORTS[format_](made))
    if as_json:
        print_document(json.dumps(WrittenReport.of(to, format_).model_dump()))
    if not quiet:
        typer.echo(f"written to {to}", err=True)
        if words := format_ == "html" and undrawn_words():
            typer.echo(words, err=True)
        left_out = format_ == "html" and sum(item.outside for item in made.items)
        if left_out:
            shown = f"mmcalib report {shlex.quote(str(source))} --data DIR shows those below DIR"
            typer.echo(f"pictures left out: {left_out}; {shown}", err=True)
