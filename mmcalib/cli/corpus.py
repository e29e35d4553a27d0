"""`mmcalib scan`: what a corpus holds, by headers alone."""

from __future__ import annotations

from typing import Annotated

import typer

from mmcalib.cli.command import Quiet, Strict, command
from mmcalib.options.run import AllowedDomains, AllowedRoot, Data, ProbeOptions, Requests


@command
def scan(
    *,
    data: Data = None,
    requests: Requests = None,
    allowed_local_media_path: AllowedRoot = None,
    allowed_media_domains: AllowedDomains = None,
    repeats: Annotated[
        bool,
        typer.Option("--repeats", help="Also compare contents, which reads whole files."),
    ] = False,
    probe: ProbeOptions,
    strict: Strict = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the counts, and what was skipped, as JSON.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Count the shapes of a corpus by its headers: neither vLLM nor a model is needed.

    Example: mmcalib scan --data ./media
    """
    from rich.console import Console

    from mmcalib.census.document import ScanDocument, SkippedItem
    from mmcalib.cli.command import print_json
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import UsageError, VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.terminal import print_census
    from mmcalib.storage.location import allowing
    from mmcalib.workflows.corpus import scan as scan_all

    if not data and not requests:
        raise UsageError("nothing to scan", hint="--data DIR or --requests FILE.jsonl")
    console = Console(stderr=True, highlight=False)
    with allowing(allowed_media_domains or ()):
        found = scan_all(
            data or [],
            requests or [],
            allowed_root=allowed_local_media_path,
            repeats=repeats,
            how=probe,
            progress=Silent() if quiet else Terminal(console),
        )
    if as_json:
        # Names need not be Unicode, which a document that is checked must be.
        skipped = [SkippedItem.model_construct(path=s.path, reason=s.reason) for s in found.skipped]
        print_json(ScanDocument.model_construct(corpus=found.corpus, skipped=skipped))
    if not quiet:
        print_census(found.corpus, found.census, found.skipped, console)
        said = "calibrate with: mmcalib run --model MODEL --data DIR"
        console.print(said, markup=False, style="bold", soft_wrap=True)
    if strict and found.skipped:
        raise VerdictError(
            f"--strict: {len(found.skipped)} files or requests were skipped",
            hint="--json lists them",
        )
