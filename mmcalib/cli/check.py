"""`mmcalib check` and `mmcalib scan`: check or count media by their headers."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

from mmcalib.cli.command import QUIET, STRICT, print_json
from mmcalib.errors import CorpusError, UsageError, VerdictError
from mmcalib.options.option import Bounds, argument, option, options, switch
from mmcalib.options.run import ALLOWED_DOMAINS, ALLOWED_ROOT, DATA, REQUESTS, ProbeOptions


@options
class CheckOptions:
    data: list[str] | None = argument(
        "NEW_DATA...",
        "Folders, files, 'patterns', archives or URLs of media; @FILE reads paths, - standard "
        "input.",
    )
    calibration: Path = option(
        "FILE",
        "The calibration.json that `mmcalib run` wrote, or its folder.",
        Path("out/calibration.json"),
    )
    requests: list[Path] | None = REQUESTS
    stdin: bool = switch("Read paths, or JSON chat requests, one per line.")
    allowed_local_media_path: Path | None = ALLOWED_ROOT
    allowed_media_domains: list[str] | None = ALLOWED_DOMAINS
    allow_unknown: bool = switch("Treat unknown items as fitting.")
    tolerate: Annotated[float, Bounds(ge=0, lt=1)] = option(
        "SHARE",
        "Exit 3 only if a larger share does not fit.",
        0.0,
        wrong="{option} {given} is not a share between 0 and 1",
        hint="--tolerate 0.01",
    )
    as_json: bool = switch(
        "Print JSON lines: one for each item that does not fit, then a summary.", "--json"
    )
    quiet: bool = switch("Print only errors.")


def check(options: CheckOptions) -> None:
    """Check new data against a calibration. Exit 3 if it does not fit, and print remedies.

    Example: mmcalib check --calibration out/calibration.json ./new-media
    """
    from rich.text import Text

    from mmcalib.admission.calibration import Calibration
    from mmcalib.admission.check import check as check_all
    from mmcalib.cli.progress import terminal
    from mmcalib.domain.items import Skipped
    from mmcalib.report.terminal import failure_line, reason_lines, session_lines, tally_line
    from mmcalib.results.check import Offender, ReasonCounts, Sessions, Summary
    from mmcalib.storage.location import allow_hosts
    from mmcalib.text import plural
    from mmcalib.text import share as percent

    data, requests = options.data or [], options.requests or []
    as_json, quiet, tolerate = options.as_json, options.quiet, options.tolerate
    paths = [path for path in data if path != "-"]
    reads = options.stdin or len(paths) < len(data)
    if not paths and not requests and not reads:
        raise UsageError("nothing to check", hint="name NEW_DATA, --requests FILE or --stdin")
    console, progress = terminal(quiet=quiet)
    counts, reasons, sessions = Counter[str](), ReasonCounts(), Sessions()
    by_path = list[str]()
    known = Calibration.load(options.calibration)
    if not quiet and (line := failure_line(known)):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    lines, root = sys.stdin.buffer if reads else (), options.allowed_local_media_path
    answers = check_all(known, paths, requests, lines, allowed_root=root)
    with allow_hosts(options.allowed_media_domains or ()), progress.step("checking") as task:
        for checked in answers:
            task.advance()
            if isinstance(checked, Skipped):
                counts["skipped"] += 1
                continue
            counts[checked.admission.answer] += 1
            by_path += [checked.origin] * checked.by_path
            counts["given"] += checked.given
            sessions.add(checked)
            if checked.admission.fits:
                continue
            reasons.add(checked.kind, checked.admission, checked)
            if as_json:
                print_json(Offender.from_value(checked.admission, checked), indent=None)
                # A pipeline reads it at once.
                sys.stdout.flush()
    total = counts["fits"] + counts["no"] + counts["unknown"]
    if not total:
        raise CorpusError("no media to check", hint="NEW_DATA is a folder of media")
    offenders = counts["no"] + (0 if options.allow_unknown else counts["unknown"])
    share = offenders / total
    summary = Summary(
        kind="summary",
        all_fit=not offenders,
        share=share,
        checked=total,
        counted_by=known.counted_by,
        **{name: counts[name] for name in ("fits", "no", "unknown", "skipped", "given")},
    )
    if as_json:
        print_json(summary, indent=None)
    tolerated = f": {percent(share)}, {percent(tolerate)} tolerated" if tolerate else ""
    turned_away = reasons.largest_first()
    if not quiet:
        for one in turned_away:
            console.print(Text(reason_lines(one)), soft_wrap=True)
        for words in session_lines(sessions.failures()):
            console.print(Text(words), soft_wrap=True)
        if by_path:
            named = f"{plural(len(by_path), 'request')} with paths, such as {by_path[0]}"
            words = f"{named}: the server takes only URLs, file:///... or data:..."
            console.print(Text(words, style="yellow"), soft_wrap=True)
        within = tolerated if share <= tolerate else ""
        console.print(Text(tally_line(summary) + within), soft_wrap=True)
        if known.counting and known.counting.why:
            words = f"text tokens are an upper bound, not counted: {known.counting.why}"
            console.print(Text(words, style="yellow"), soft_wrap=True)
    if share > tolerate:
        shown = (as_json or not quiet) and any(one.remedy for one in turned_away)
        above = "apply the remedies above, or " if shown else ""
        if not (as_json or quiet or all(one.count == len(one.examples) for one in turned_away)):
            above = f"--json lists each; {above}"
        do, are = ("does", "is") if offenders == 1 else ("do", "are")
        misfit = f"{do} not fit" if offenders == counts["no"] else f"{are} not known to fit"
        raise VerdictError(
            f"{offenders} of {total} {misfit} {options.calibration}{tolerated}",
            hint=f"{above}mmcalib run with such media",
        )


@options
class ScanOptions:
    sources: list[str] | None = argument("[SOURCE]...", "The same as --data.")
    data: list[str] | None = DATA
    requests: list[Path] | None = REQUESTS
    allowed_local_media_path: Path | None = ALLOWED_ROOT
    allowed_media_domains: list[str] | None = ALLOWED_DOMAINS
    repeats: bool = switch("Also compare contents; reads whole files.")
    save: Path | None = option("FILE", "Write all sizes, for --requests where the media are not.")
    model: str | None = option("MODEL", "With --save: count text in tokens of this model.")
    probe: ProbeOptions
    strict: bool = STRICT
    as_json: bool = switch("Print the counts and the skipped files as JSON.", "--json")
    quiet: bool = QUIET


def scan(options: ScanOptions) -> None:
    """Count the items and sizes of your media by their headers, without vLLM or a model.

    Example: mmcalib scan ./media
    """
    from mmcalib.cli.progress import terminal
    from mmcalib.report.terminal import print_census
    from mmcalib.results.doctor import ScanDocument, SkippedItem
    from mmcalib.storage.location import allow_hosts
    from mmcalib.workflows.corpus import scan as scan_all

    data = [*(options.data or []), *(options.sources or [])]
    if not data and not options.requests:
        raise UsageError("nothing to scan", hint="--data DIR or --requests FILE.jsonl")
    if options.model and not options.save:
        raise UsageError("--model counts text for --save", hint="--save corpus.jsonl")
    console, progress = terminal(quiet=options.quiet)
    with allow_hosts(options.allowed_media_domains or ()):
        corpus, census, left_out = scan_all(
            data,
            options.requests or [],
            allowed_root=options.allowed_local_media_path,
            repeats=options.repeats,
            save=options.save,
            model=options.model,
            how=options.probe,
            progress=progress,
        )
    if options.as_json:
        # Names may not be Unicode, which a validated document must be.
        skipped = [SkippedItem.model_construct(path=s.path, reason=s.reason) for s in left_out]
        print_json(ScanDocument.model_construct(corpus=corpus, skipped=skipped))
    if not options.quiet:
        print_census(corpus, census, left_out, console)
        given = [("--data", one) for one in data]
        given += [("--requests", str(one)) for one in options.requests or ()]
        given = [("--requests", str(options.save))] if options.save else given
        read = shlex.join(word for pair in given for word in pair)
        console.print(f"Next: mmcalib run --model MODEL {read}", style="bold", soft_wrap=True)
    if options.strict and left_out:
        raise VerdictError(
            f"--strict: {len(left_out)} files or requests were skipped", hint="--json lists them"
        )
