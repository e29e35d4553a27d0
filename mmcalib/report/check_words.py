"""What `mmcalib check` says: a line per offender, and a summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmcalib.derive.admission import Answer
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.check_result import assumed, first_failed, verdict_words
from mmcalib.result.checked import Checked, Tally
from mmcalib.wording import number, plain

_MARKS: Mapping[Answer, str] = {"fits": "ok", "no": "NO", "unknown": "??"}


def offender_line(checked: Checked) -> str:
    """The answer, the item and its shape, the reason and what would make it fit, on two lines."""
    admission = checked.admission
    what = "" if len(checked.shapes) != 1 else f" ({checked.shapes[0]})"
    line = f"{_MARKS[admission.answer]} {plain(checked.origin)}{what}: {plain(admission.reason)}"
    return f"{line}\n   → {plain(admission.remedy)}" if admission.remedy else line


def calibration_lines(calibration: CalibrationDocument) -> Iterator[str]:
    """What to know of the calibration that is asked: why it failed, or what it assumes."""
    if calibration.verdict == "fail":
        failed = first_failed(calibration.checks)
        yield plain(f"the calibration failed: {failed.name}: {failed.detail}")
        return
    if assumptions := assumed(calibration.checks):
        verdict = verdict_words(
            calibration.verdict, calibration.checks, calibration.corpus.losses()
        )
        yield f"the calibration's verdict: {verdict}"
        for check in assumptions:
            yield plain(f"   {check.name}: {check.detail}")
            yield plain(f"   → mmcalib run with {check.remedy}")


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
