"""Report, show, diff, --emit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmcalib.cli.command import MORE, Quiet, either, none_of, print_document
from mmcalib.errors import UsageError, VerdictError
from mmcalib.report import CONFIGURATION_NAMES, REPORT_NAMES

if TYPE_CHECKING:
    from mmcalib.admission.calibration import Calibration
    from mmcalib.results.calibration import CalibrationDocument

# `mmcalib run` writes the first in any case.
_TOO = CONFIGURATION_NAMES[1:]


def _known(value: str | None) -> str | None:
    if value is not None and value not in CONFIGURATION_NAMES:
        raise UsageError(
            f"--emit {value} is {none_of(CONFIGURATION_NAMES)}", hint=f"--emit {_TOO[0]}"
        )
    return value


def _all_known(values: list[str] | None) -> list[str] | None:
    return [value for value in values or () if _known(value)]


Emit = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        callback=_known,
        help=f"Print the configuration instead: {either(CONFIGURATION_NAMES)}.",
    ),
]
EmitToo = Annotated[
    list[str] | None,
    typer.Option(
        "--emit",
        metavar="FORMAT",
        callback=_all_known,
        help=f"Write the configuration as {either(_TOO)}, too; may be repeated.",
    ),
]


def text_of(calibration: CalibrationDocument, form: str, *, force: bool = False) -> str:
    """The configuration in this form. Raises VerdictError for one that failed, unless `force`."""
    from mmcalib.report.configurations import CONFIGURATIONS
    from mmcalib.results.part import first_failed

    if calibration.verdict == "fail" and not force:
        failed = first_failed(calibration.checks)
        raise VerdictError(
            f"not emitted: the verdict is no: {failed.name}: {failed.detail}",
            hint=f"{failed.remedy or 'see the report'}; --force emits it all the same",
        )
    return CONFIGURATIONS[form].render(calibration)


def emit_again(
    source: Path,
    form: str,
    out: Path | None,
    *,
    redact_paths: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """What a kept calibration says, in this form: into `out`, or to standard output."""
    from mmcalib.admission.calibration import Calibration
    from mmcalib.files import write_text
    from mmcalib.report.configurations import CONFIGURATIONS
    from mmcalib.report.html.redact import redacted
    from mmcalib.report.report import WrittenReport

    if as_json and out is None:
        file = CONFIGURATIONS[form].file
        raise UsageError("--json needs --out FILE with --emit", hint=f"--out {file}")
    calibration = Calibration.load(source)
    text = text_of(redacted(calibration)[0] if redact_paths else calibration, form, force=force)
    if out is None:
        _show(text)
    else:
        write_text(out, text)
    if as_json and out is not None:
        print_document(json.dumps(WrittenReport.of(out, form).model_dump()))
    if not quiet:
        if calibration.verdict == "fail":
            typer.echo("warning: the verdict of this configuration is fail", err=True)
        typer.echo(
            f"use, kept as {out or CONFIGURATIONS[form].file}: {use(calibration, form, out)}",
            err=True,
        )


def _show(text: str) -> None:
    """Print it as it would be in a file, also where a name in it is not UTF-8."""
    sys.stdout.flush()
    typer.echo(text.encode("utf-8", errors="surrogateescape"), nl=False)


def use(calibration: Calibration, form: str, file: Path | None) -> str:
    """How an engine is started from it, in a line."""
    from shlex import quote

    from mmcalib.report.configurations import CONFIGURATIONS

    name = quote(str(file)) if file else CONFIGURATIONS[form].file
    return CONFIGURATIONS[form].usage(calibration.server, name)


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
    from mmcalib.report.html.items import Roots
    from mmcalib.report.report import REPORTS, Report, WrittenReport
    from mmcalib.report.terminal import summary
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
    from mmcalib.report.markdown import differences, rehearsal_differences
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
