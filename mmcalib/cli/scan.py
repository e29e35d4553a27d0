"""`mmcalib scan`: what a corpus holds, by headers alone; the census of it, or of a part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.options import (
    AllowedRoot,
    AllowUrl,
    Data,
    ExecutorName,
    Force,
    ItemTimeout,
    NoCache,
    Out,
    Quiet,
    RayAddress,
    Requests,
    Strict,
    Workers,
)


def scan(
    data: Data = None,
    requests: Requests = None,
    out: Out = Path("out"),
    allowed_local_media_path: AllowedRoot = None,
    allow_url: AllowUrl = False,
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
    workers: Workers = None,
    item_timeout: ItemTimeout = 30.0,
    executor: ExecutorName = "local",
    ray_address: RayAddress = None,
    no_cache: NoCache = False,
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
    from mmcalib.cli.probe_options import probe_options_of
    from mmcalib.cli.progress import Terminal
    from mmcalib.corpus.shard import Shard
    from mmcalib.errors import UsageError
    from mmcalib.job.scan import scan as scan_all
    from mmcalib.progress import Silent

    if not data and not requests:
        raise UsageError("nothing to scan", hint="--data DIR or --requests FILE.jsonl")
    part = Shard.parse(shard) if shard is not None else None
    how = probe_options_of(
        executor=executor,
        workers=workers,
        item_timeout=item_timeout,
        ray_address=ray_address,
        no_cache=no_cache,
    )
    claim(out, force=force)
    console = Console(stderr=True, highlight=False)
    found = scan_all(
        data or [],
        requests or [],
        allowed_root=allowed_local_media_path,
        allow_url=allow_url,
        shard=part,
        repeats=repeats,
        how=how,
        progress=Silent() if quiet else Terminal(console),
    )
    leave(found, out, console, as_json=as_json, quiet=quiet, strict=strict)
