"""`--emit`: the configuration in other forms than `engine.yaml`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmcalib.cli.choices import either, none_of
from mmcalib.cli.document import print_document
from mmcalib.errors import UsageError, VerdictError
from mmcalib.report.formats import CONFIGURATION_NAMES

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
    from mmcalib.report.written import WrittenReport

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
    return CONFIGURATIONS[form].used(calibration.server, name)
