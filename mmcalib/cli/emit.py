"""`--emit`: the configuration in other forms than `engine.yaml`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmcalib.errors import UsageError, VerdictError
from mmcalib.options.completion import one_of

if TYPE_CHECKING:
    from mmcalib.job.gate.calibration import Calibration
    from mmcalib.result.calibration import CalibrationDocument

FORMATS = ("yaml", "args", "env", "k8s", "python")


def _known(value: str | None) -> str | None:
    if value is not None and value not in FORMATS:
        raise UsageError(
            f"--emit {value} is none of {', '.join(FORMATS)}", hint=f"--emit {FORMATS[1]}"
        )
    return value


def _all_known(values: list[str] | None) -> list[str] | None:
    return [value for value in values or () if _known(value)]


Emit = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        callback=_known,
        autocompletion=one_of(*FORMATS),
        help="Print the configuration instead: yaml, args, env, k8s or python.",
    ),
]
EmitToo = Annotated[
    list[str] | None,
    typer.Option(
        "--emit",
        metavar="FORMAT",
        callback=_all_known,
        autocompletion=one_of(*FORMATS[1:]),
        help="Write the configuration as args, env, k8s or python, too; may be repeated.",
    ),
]


def text_of(calibration: CalibrationDocument, form: str, *, force: bool = False) -> str:
    """The configuration in this form. Raises VerdictError for one that failed, unless `force`."""
    from mmcalib.report.emit import FORMS
    from mmcalib.result.check_result import first_failed

    if calibration.verdict == "fail" and not force:
        failed = first_failed(calibration.checks)
        raise VerdictError(
            f"not emitted: the verdict is no: {failed.name}: {failed.detail}",
            hint=f"{failed.remedy or 'see the report'}; --force emits it all the same",
        )
    return FORMS[form].text(calibration)


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
    from mmcalib.files import write_text
    from mmcalib.job.gate.calibration import Calibration
    from mmcalib.report.emit import FORMS
    from mmcalib.report.html.redact import redacted

    if as_json and out is None:
        raise UsageError("--emit prints text, --json says where it is", hint="--out FILE")
    calibration = Calibration.load(source)
    text = text_of(redacted(calibration)[0] if redact_paths else calibration, form, force=force)
    if out is None:
        _show(text)
    else:
        write_text(out, text)
    if as_json and out is not None:
        print(json.dumps({"written": str(out), "format": form, "bytes": out.stat().st_size}))
    if not quiet:
        if calibration.verdict == "fail":
            typer.echo("warning: the verdict of this configuration is fail", err=True)
        typer.echo(
            f"use, kept as {out or FORMS[form].file}: {use(calibration, form, out)}", err=True
        )


def _show(text: str) -> None:
    """Print it as it would be in a file, also where a name in it is not UTF-8."""
    sys.stdout.flush()
    typer.echo(text.encode("utf-8", errors="surrogateescape"), nl=False)


def use(calibration: Calibration, form: str, file: Path | None) -> str:
    """How an engine is started from it, in a line."""
    from shlex import quote

    from mmcalib.report.emit import FORMS

    name = quote(str(file)) if file else FORMS[form].file
    return FORMS[form].used(calibration.server, name)
