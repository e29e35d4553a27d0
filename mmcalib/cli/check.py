"""`mmcalib check`: does new data fit a calibration? A gate for pipelines, at header speed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmcalib.cli.command import command, print_document
from mmcalib.options.run import AllowedDomains, AllowedRoot, Requests

if TYPE_CHECKING:
    from mmcalib.results.check import Offender, Summary


@command
def check(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NEW_DATA...",
            help="Folders, files, 'patterns', archives or URLs of media; @FILE reads paths, - "
            "standard input.",
        ),
    ] = None,
    calibration: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="The calibration.json that `mmcalib run` wrote, or its folder."
        ),
    ] = Path("out/calibration.json"),
    requests: Requests = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read paths, or JSON chat requests, one per line.")
    ] = False,
    allowed_local_media_path: AllowedRoot = None,
    allowed_media_domains: AllowedDomains = None,
    allow_unknown: Annotated[
        bool,
        typer.Option("--allow-unknown", help="Treat unknown items as fitting."),
    ] = False,
    tolerate: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Exit 3 only if more than this share does not fit."),
    ] = 0.0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object per line: what does not fit, then a summary."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the exit code and errors.")] = False,
) -> None:
    """Say whether new data fits a calibration; exit 3 if not, and what would make it fit.

    Example: mmcalib check --calibration out/calibration.json ./new-media
    """
    from rich.console import Console
    from rich.text import Text

    from mmcalib.admission.calibration import Calibration
    from mmcalib.admission.check import check as check_all
    from mmcalib.cli.progress import Terminal
    from mmcalib.domain.items import Skipped
    from mmcalib.errors import CorpusError, UsageError, VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.terminal import failure_line, reason_lines, tally_line
    from mmcalib.results.calibration import calibration_in
    from mmcalib.results.check import Offender, ReasonCounts, Summary, Tally
    from mmcalib.storage.location import allowing
    from mmcalib.text import share as percent

    paths = [path for path in data or [] if path != "-"]
    reads = stdin or len(paths) < len(data or [])
    if not paths and not requests and not reads:
        raise UsageError("nothing to check", hint="name NEW_DATA, --requests FILE or --stdin")
    if not 0 <= tolerate < 1:
        raise UsageError(f"--tolerate {tolerate} is not a share", hint="--tolerate 0.01")
    console = Console(stderr=True, highlight=False)
    tally, reasons = Tally(), ReasonCounts()
    known = Calibration.load(calibration_in(calibration))
    if not quiet and (line := failure_line(known)):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    answers = check_all(
        known,
        paths,
        requests or [],
        sys.stdin.buffer if reads else (),
        allowed_root=allowed_local_media_path,
    )
    progress = Silent() if quiet else Terminal(console)
    with allowing(allowed_media_domains or ()), progress.step("checking") as task:
        for checked in answers:
            task.advance()
            if isinstance(checked, Skipped):
                tally.skipped += 1
                continue
            tally.answers[checked.admission.answer] += 1
            if checked.admission.fits:
                continue
            reasons.add(checked.kind, checked.admission, checked)
            if as_json:
                _print(Offender.of(checked))
    if not tally.checked:
        raise CorpusError("nothing was checked: no media", hint="NEW_DATA is a folder of media")
    offenders = tally.offenders(allow_unknown=allow_unknown)
    share = offenders / tally.checked
    summary = Summary.of(tally, all_fit=not offenders, share=share)
    if as_json:
        _print(summary)
    tolerated = f": {percent(share)}, {percent(tolerate)} tolerated" if tolerate else ""
    found = reasons.largest_first()
    if not quiet:
        for one in found:
            console.print(Text(reason_lines(one)), soft_wrap=True)
        within = tolerated if share <= tolerate else ""
        console.print(Text(tally_line(tally) + within), soft_wrap=True)
        if known.counting and known.counting.why:
            words = f"texts were bounded, not counted: {known.counting.why}"
            console.print(Text(words, style="yellow"), soft_wrap=True)
    if share > tolerate:
        shown = (as_json or not quiet) and any(one.remedy for one in found)
        above = "the remedies above, or " if shown else ""
        if not (as_json or quiet or all(one.count == len(one.examples) for one in found)):
            above = f"--json lists each; {above}"
        misfit = "do not fit" if offenders == tally.answers["no"] else "are not known to fit"
        raise VerdictError(
            f"{offenders} of {tally.checked} {misfit} {calibration}{tolerated}",
            hint=f"{above}mmcalib run on a corpus that has such media",
        )


def _print(line: Offender | Summary) -> None:
    """At once, so that a pipeline sees it; escapes keep names that are not UTF-8."""
    print_document(json.dumps(line.model_dump()))
    sys.stdout.flush()
