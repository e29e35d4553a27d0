"""What `mmcalib check` prints: a line per reason, and a summary."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mmcalib.derive.admission import Answer
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.check import ReasonCount, Tally
from mmcalib.results.part import first_failed
from mmcalib.text import number, plain
from mmcalib.text import share as percent

_VERDICTS: Mapping[Answer, str] = {"fits": "ok", "no": "NO", "unknown": "??"}
_NOUNS = {"item": "files", "prompt": "requests"}


def reason_lines(found: ReasonCount) -> str:
    """The answer, the reason and how many share it, and on a second line what would make them fit.
    A single one is shown with its whole name and its shape.
    """
    first = found.examples[0]
    if found.count == 1:
        what = "" if len(first.shapes) != 1 else f" ({first.shapes[0]})"
        words = f"{first.origin}{what}: {first.admission.reason}"
    else:
        names = [os.path.basename(one.origin) or one.origin for one in found.examples]
        more = ["..."] if found.count > len(names) else []
        noun = _NOUNS[found.kind]
        words = f"{number(found.count)} {noun}: {found.reason} ({', '.join([*names, *more])})"
    line = f"{_VERDICTS[found.answer]} {plain(words)}"
    if not found.remedy:
        return line
    return f"{line}\n   → {'' if found.same_remedy else 'such as: '}{plain(found.remedy)}"


def failure_line(calibration: CalibrationDocument) -> str:
    """Why the calibration itself failed; empty where it passed."""
    if calibration.verdict != "fail":
        return ""
    failed = first_failed(calibration.checks)
    return plain(f"the calibration failed: {failed.name}: {failed.detail}")


def misfits(tally: Tally, offenders: int) -> str:
    """What so many do that keep the data from fitting."""
    return "do not fit" if offenders == tally.answers["no"] else "are not known to fit"


def summary_line(tally: Tally) -> str:
    """The counts in one sentence."""
    parts = [f"{number(tally.answers['fits'])} of {number(tally.checked)} fit"]
    parts += [f"{number(tally.answers['no'])} do not"] if tally.answers["no"] else []
    parts += [f"{number(tally.answers['unknown'])} unknown"] if tally.answers["unknown"] else []
    parts += [f"{number(tally.skipped)} are no media"] if tally.skipped else []
    return ", ".join(parts)


def tolerated_words(share: float, tolerated: float) -> str:
    """The share that does not fit, where one is tolerated; empty elsewhere."""
    return f": {percent(share)}, {percent(tolerated)} tolerated" if tolerated else ""
