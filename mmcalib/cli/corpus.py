"""`mmcalib scan`: counts the items and sizes of media by their headers."""

from __future__ import annotations

from pathlib import Path

from mmcalib.cli.command import QUIET, STRICT
from mmcalib.options.option import options, switch
from mmcalib.options.run import ALLOWED_DOMAINS, ALLOWED_ROOT, DATA, REQUESTS, ProbeOptions


@options
class ScanOptions:
    data: list[str] | None = DATA
    requests: list[Path] | None = REQUESTS
    allowed_local_media_path: Path | None = ALLOWED_ROOT
    allowed_media_domains: list[str] | None = ALLOWED_DOMAINS
    repeats: bool = switch("Also compare contents; reads whole files.")
    probe: ProbeOptions
    strict: bool = STRICT
    as_json: bool = switch("Print the counts and the skipped files as JSON.", "--json")
    quiet: bool = QUIET


def scan(options: ScanOptions) -> None:
    """Count the items and sizes of your media by their headers, without vLLM or a model.

    Example: mmcalib scan --data ./media
    """
    from mmcalib.census.document import ScanDocument, SkippedItem
    from mmcalib.cli.command import print_json
    from mmcalib.cli.progress import terminal
    from mmcalib.errors import UsageError, VerdictError
    from mmcalib.report.terminal import print_census
    from mmcalib.storage.location import allow_hosts
    from mmcalib.workflows.corpus import scan as scan_all

    if not options.data and not options.requests:
        raise UsageError("nothing to scan", hint="--data DIR or --requests FILE.jsonl")
    console, progress = terminal(quiet=options.quiet)
    with allow_hosts(options.allowed_media_domains or ()):
        scanned = scan_all(
            options.data or [],
            options.requests or [],
            allowed_root=options.allowed_local_media_path,
            repeats=options.repeats,
            how=options.probe,
            progress=progress,
        )
    if options.as_json:
        # Names may not be Unicode, which a validated document must be.
        skipped = [
            SkippedItem.model_construct(path=s.path, reason=s.reason) for s in scanned.skipped
        ]
        print_json(ScanDocument.model_construct(corpus=scanned.corpus, skipped=skipped))
    if not options.quiet:
        print_census(scanned.corpus, scanned.census, scanned.skipped, console)
        console.print("Next: mmcalib run --model MODEL --data DIR", style="bold", soft_wrap=True)
    if options.strict and scanned.skipped:
        raise VerdictError(
            f"--strict: {len(scanned.skipped)} files or requests were skipped",
            hint="--json lists them",
        )
