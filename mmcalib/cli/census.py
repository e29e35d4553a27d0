"""What `scan` and `merge` leave behind: two files, a summary, and the exit code."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from mmcalib.cli.document import print_json
from mmcalib.errors import VerdictError
from mmcalib.files import write_texts
from mmcalib.report.census_terminal import surveyed
from mmcalib.result.survey import missing
from mmcalib.result_files import skipped_jsonl
from mmcalib.workflows.scan import CENSUS, SKIPPED, Scanned


def leave(
    found: Scanned,
    out: Path,
    console: Console,
    *,
    source: str,
    as_json: bool,
    quiet: bool,
    strict: bool,
) -> None:
    """Write the files, say what there is to say, and leave by the exit code. `source` is what
    `mmcalib run` best takes the corpus from.
    """
    survey = found.survey
    write_texts({out / SKIPPED: skipped_jsonl(found.skipped), out / CENSUS: survey.to_json()})
    if as_json:
        print_json(survey.counts)
    if not quiet:
        surveyed(survey, found.skipped, console)
        console.print(f"written to {out}: {CENSUS}, {SKIPPED}", markup=False, soft_wrap=True)
        console.print(_next(found, out, source), markup=False, style="bold", soft_wrap=True)
    if strict and found.skipped:
        raise VerdictError(
            f"--strict: {len(found.skipped)} files or requests were skipped",
            hint=f"see {out / SKIPPED}",
        )


def _next(found: Scanned, out: Path, source: str) -> str:
    if missing(found.survey.shards):
        return f"when all shards are there: mmcalib merge {shlex.quote(str(out / CENSUS))} ..."
    return f"calibrate with: mmcalib run --model MODEL {source}"
