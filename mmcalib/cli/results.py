"""`mmcalib report` and `mmcalib diff`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import MISSING
from functools import partial
from pathlib import Path

import typer

from mmcalib.cli.command import QUIET, STRICT, print_json
from mmcalib.errors import UsageError, VerdictError
from mmcalib.options.option import argument, option, options, switch
from mmcalib.report import CONFIGURATION_NAMES, REPORT_NAMES, ConfigurationName, ReportName


def _join_or(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


# `mmcalib run` always writes the first.
_TOO = CONFIGURATION_NAMES[1:]
_emit_option = partial(
    option,
    "FORMAT",
    wrong=f"--emit {{given}} is unknown; it takes {', '.join(CONFIGURATION_NAMES)}",
    hint=f"--emit {_TOO[0]}",
)
_NO_THUMBNAILS = switch("Leave pictures out of report.html.")
_REDACT_PATHS = switch("Leave file names out of the reports.")


@options
class ResultOptions:
    """What `mmcalib run` writes and prints."""

    emit: list[ConfigurationName] | None = _emit_option(
        f"Also write the configuration as {_join_or(_TOO)}; may be repeated.",
        words_type=list[str],
        basic=True,
    )
    no_thumbnails: bool = _NO_THUMBNAILS
    redact_paths: bool = _REDACT_PATHS
    strict: bool = STRICT
    force: bool = switch("Overwrite results in --out.", basic=True)
    as_json: bool = switch(
        "Print calibration.json, or comparison.json for several.", "--json", basic=True
    )
    quiet: bool = QUIET


@options
class ReportOptions:
    source: Path = argument(
        "DIR|calibration.json", "The --out folder of `mmcalib run`, or its file.", Path("out")
    )
    out: Path | None = option(
        "FILE",
        "Default: report.html or report.md in the same folder; for other forms standard output, -.",
    )
    format: ReportName = option(
        "FORMAT",
        f"{_join_or(REPORT_NAMES)}.",
        REPORT_NAMES[0],
        wrong=f"--format {{given}} is unknown; it takes {', '.join(REPORT_NAMES)}",
        hint=f"--format {REPORT_NAMES[0]}",
    )
    data: list[Path] | None = option(
        "DIR", "Folder or file with media that the page may show; may be repeated."
    )
    emit: ConfigurationName | None = _emit_option(
        f"Print the configuration instead: {_join_or(CONFIGURATION_NAMES)}."
    )
    no_thumbnails: bool = _NO_THUMBNAILS
    redact_paths: bool = _REDACT_PATHS
    force: bool = switch("Overwrite --out; write a configuration that failed.")
    as_json: bool = switch("Print the name of the written file as JSON.", "--json")
    quiet: bool = QUIET


def _emit_again(source: Path, form: str, out: Path | None, options: ReportOptions) -> None:
    """Write the configuration in this form into `out`, or to standard output."""
    from mmcalib.admission.calibration import Calibration
    from mmcalib.engine.environment import serve_program
    from mmcalib.files import write_text
    from mmcalib.report.configurations import CONFIGURATIONS
    from mmcalib.report.html.redact import redacted
    from mmcalib.report.report import WrittenReport
    from mmcalib.report.terminal import failure_line
    from mmcalib.results.part import first_failed

    file = CONFIGURATIONS[form].file
    if options.as_json and out is None:
        raise UsageError("--json needs --out FILE with --emit", hint=f"--out {file}")
    calibration = Calibration.load(source)
    shown = redacted(calibration)[0] if options.redact_paths else calibration
    if (failure := failure_line(shown)) and not options.force:
        remedy = first_failed(shown.checks).remedy or "see the report"
        raise VerdictError(f"not written: {failure}", hint=f"{remedy}; --force writes it anyway")
    text = CONFIGURATIONS[form].render(shown, serve_program())
    if out is None:
        # The bytes of a file, even if a name is not UTF-8.
        sys.stdout.flush()
        typer.echo(text.encode("utf-8", errors="surrogateescape"), nl=False)
    else:
        write_text(out, text)
        if options.as_json:
            print_json(WrittenReport.of(out, form), indent=None)
    if not options.quiet:
        if calibration.verdict == "fail":
            typer.echo("warning: this configuration failed its checks", err=True)
        name = shlex.quote(str(out)) if out else file
        use = CONFIGURATIONS[form].usage(calibration.server, name, serve_program())
        typer.echo(f"Use: {use}" if out else f"Save as {file}, then: {use}", err=True)


def report(options: ReportOptions) -> None:
    """Show a calibration again from its calibration.json. Needs no vLLM.

    Example: mmcalib report out --data ./media --out report.html

    Example: mmcalib report out --format text

    Example: mmcalib report out --emit args
    """
    from mmcalib.admission.calibration import Calibration
    from mmcalib.engine.environment import serve_command
    from mmcalib.files import write_text
    from mmcalib.report.html.canvas import undrawn_words
    from mmcalib.report.report import REPORTS, Report, WrittenReport
    from mmcalib.results.calibration import find_calibration

    source, out, data, form = options.source, options.out, options.data or [], options.format
    location = find_calibration(source)
    to = out or location.with_name(f"report.{form}")
    # It replaces the report of `mmcalib run`, and other files only with --force.
    printed = str(out) == "-" or (out is None and form in ("text", "issue"))
    if out is not None and not printed and out.exists() and not options.force:
        raise UsageError(f"--out {out} exists", hint="--force, or another --out")
    if to.is_dir():
        raise UsageError(f"--out {to} is a folder", hint=f"--out {to}/report.{form}")
    for path in data:
        if not path.exists():
            raise UsageError(
                f"--data {path}: no such file or folder",
                hint="--data DIR: the folder that `mmcalib run` read",
            )
    if options.emit is not None:
        _emit_again(location, options.emit, None if printed else out, options)
        return
    calibration = Calibration.load(location)
    if printed and options.as_json:
        raise UsageError("the report and --json both need standard output", hint="--out FILE")
    made = Report(
        calibration,
        serve_command(location.with_name("engine.yaml")),
        thumbnails=not options.no_thumbnails,
        redact_paths=options.redact_paths,
        roots=data,
        folder=str(location.parent),
    )
    if printed:
        sys.stdout.write(REPORTS[form](made))
        return
    write_text(to, REPORTS[form](made))
    if options.as_json:
        print_json(WrittenReport.of(to, form), indent=None)
    if not options.quiet:
        typer.echo(f"Report: {to}", err=True)
        if words := form == "html" and undrawn_words():
            typer.echo(words, err=True)
        left_out = form == "html" and sum(item.outside for item in made.items)
        if left_out:
            shown = f"mmcalib report {shlex.quote(str(source))} --data DIR"
            typer.echo(f"{left_out} pictures left out; to show those below DIR: {shown}", err=True)


@options
class DiffOptions:
    old: Path = argument(
        "OLD", "A folder of results, calibration.json, or the output of `rehearse --json`.", MISSING
    )
    new: Path = argument("NEW", "The other result.", MISSING)
    as_json: bool = switch("Print an object of lists of [name, old, new].", "--json")


def diff(options: DiffOptions) -> None:
    """Compare two calibrations, or two rehearsals. Exit 0 even if they differ.

    Example: mmcalib diff out-before out
    """
    from rich.console import Console

    from mmcalib.admission.calibration import Calibration
    from mmcalib.report.markdown import differences
    from mmcalib.report.terminal import folded, plain_table
    from mmcalib.results.calibration import find_calibration, read_rehearsal

    files = find_calibration(options.old), find_calibration(options.new)
    before, after = map(read_rehearsal, files)
    if before and after:
        differing, what = differences(before, after), "memory and encoder budget"
    else:
        differing, what = differences(*map(Calibration.load, files)), "settings, memory or checks"
    if options.as_json:
        print_json(differing)
        return
    console = Console(highlight=False)
    if not differing:
        console.print(f"no difference in {what}")
    for part, rows in differing.items():
        table = plain_table([folded(""), folded(str(options.old)), folded(str(options.new))], rows)
        table.title, table.title_justify, table.title_style = part, "left", "bold"
        console.print(table)
        console.print()
