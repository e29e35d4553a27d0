"""`mmcalib requests`: the requests file that the other commands read, from what servers leave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.choices import either, none_of
from mmcalib.cli.command import command
from mmcalib.cli.options import Force, Quiet, Strict
from mmcalib.corpus.exports import AUTO, NAMES
from mmcalib.errors import UsageError
from mmcalib.options.completion import one_of
from mmcalib.options.corpus import AllowedRoot, AllowUrl

_FORMS = (AUTO, *NAMES)


def _known(value: str) -> str:
    if value not in _FORMS:
        raise UsageError(f"--from {value} is {none_of(_FORMS)}", hint="leave --from out")
    return value


@command
def requests(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Logs and exports: JSON Lines, a JSON list, text."),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FORMAT",
            callback=_known,
            autocompletion=one_of(*_FORMS),
            help=f"Whose they are: {either(_FORMS)}.",
        ),
    ] = AUTO,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The requests file to write.")] = Path(
        "requests.jsonl"
    ),
    media: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for media that stand in the logs; default: beside --out."
        ),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact", help="No word and no picture leaves: filler as long, blanks of a size."
        ),
    ] = False,
    allowed_local_media_path: AllowedRoot = None,
    allow_url: AllowUrl = False,
    strict: Strict = False,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make the file that --requests reads of what proxies, servers and benchmarks leave.

    Example: mmcalib requests proxy.jsonl --out requests.jsonl
    """
    from rich.console import Console

    from mmcalib.cli.document import print_json
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.converted_words import converted_lines
    from mmcalib.workflows.convert import convert

    if (out.exists() or out.is_symlink()) and not force:
        raise UsageError(f"--out {out} is there already", hint="--force, or --out another file")
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder", hint=f"--out {out / 'requests.jsonl'}")
    console = Console(stderr=True, highlight=False)
    found = convert(
        logs,
        out,
        media or out.parent / f"{out.stem}-media",
        form=form,
        redact=redact,
        allowed_root=allowed_local_media_path,
        allow_url=allow_url,
        progress=Silent() if quiet else Terminal(console),
    )
    if as_json:
        print_json(found)
    if not quiet:
        for line in converted_lines(found):
            console.print(line, markup=False, soft_wrap=True)
    if strict and found.skipped:
        raise VerdictError(
            f"--strict: {found.skipped} requests were skipped", hint="the reasons are above"
        )
