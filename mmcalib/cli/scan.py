"""`mmcalib scan`: what a corpus holds, by headers alone; the census of it, or of a part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.command import command
from mmcalib.cli.options import Force, Quiet, Strict
from mmcalib.options.corpus import AllowedDomains, AllowedRoot, Data, Out, Requests
from mmcalib.options.probe import ProbeOptions


@command
def scan(
    *,
    data: Data = None,
    requests: Requests = None,
    out: Out = Path("out"),
    allowed_local_media_path: AllowedRoot = None,
    allowed_media_domains: AllowedDomains = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Only the I-th of N parts of the corpus; merge adds them up."
        ),
    ] = None,
    repeats: Annotated[
        bool,
        typer.Option("--repeats", help="Also compare contents, which reads whole files."),
    ] = False,
    probe: ProbeOptions,
    strict: Strict = False,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Count the shapes of a corpus by its headers: neither vLLM nor a model is needed.

    Example: mmcalib scan --data ./media --shard 1/4 --out ./part-1
    """
    from rich.console import Console

    from mmcalib.cli.census import leave
    from mmcalib.cli.output import claim
    from mmcalib.cli.progress import Terminal
    from mmcalib.corpus.shard import Shard
    from mmcalib.errors import UsageError
    from mmcalib.locations.domains import allowing
    from mmcalib.progress import Silent
    from mmcalib.workflows.scan import scan as scan_all

    if not data and not requests:
        raise UsageError("nothing to scan", hint="--data DIR or --requests FILE.jsonl")
    part = Shard.parse(shard) if shard is not None else None
    claim(out, force=force)
    console = Console(stderr=True, highlight=False)
    with allowing(allowed_media_domains or ()):
        found = scan_all(
            data or [],
            requests or [],
            allowed_root=allowed_local_media_path,
            shard=part,
            repeats=repeats,
            how=probe,
            progress=Silent() if quiet else Terminal(console),
        )
    # It also reads the order of requests, and every text, which a census does not keep.
    source = "--data DIR"
    leave(found, out, console, source=source, as_json=as_json, quiet=quiet, strict=strict)
