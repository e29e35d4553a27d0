"""What `mmcalib check` says: one line or JSON object per offender, and a summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from mmcalib.derive.admission import Answer
from mmcalib.domain.shapes import Shape
from mmcalib.result.checked import Checked, Tally
from mmcalib.wording import number, plain

_MARKS: Mapping[Answer, str] = {"fits": "ok", "no": "NO", "unknown": "??"}


def offender_json(checked: Checked) -> dict[str, object]:
    """Plain JSON types: what was checked, what it is, and the admission's fields."""
    shapes = [_shape_json(shape) for shape in checked.shapes]
    admission = checked.admission
    found = {"kind": checked.kind, "origin": checked.origin, **asdict(admission)}
    largest = _shape_json(admission.largest) if admission.largest else None
    return {**found, "largest": largest, "shapes": shapes}


def _shape_json(shape: Shape) -> dict[str, object]:
    return {"modality": shape.modality, **asdict(shape)}


def summary_json(tally: Tally, *, fits: bool) -> dict[str, object]:
    """The last object: counts, and whether the data fits as a whole."""
    counts = {"checked": tally.checked, "skipped": tally.skipped, **_named(tally.answers)}
    return {"kind": "summary", "all_fit": fits, **counts}


def _named(answers: Mapping[Answer, int]) -> dict[str, int]:
    return {str(answer): count for answer, count in answers.items()}


def offender_line(checked: Checked) -> str:
    """The answer, the item and its shape, the reason and what would make it fit, on two lines."""
    admission = checked.admission
    what = "" if len(checked.shapes) != 1 else f" ({checked.shapes[0]})"
    line = f"{_MARKS[admission.answer]} {plain(checked.origin)}{what}: {plain(admission.reason)}"
    return f"{line}\n   → {plain(admission.remedy)}" if admission.remedy else line


def summary_line(tally: Tally) -> str:
    """The counts in one sentence."""
    parts = [f"{number(tally.answers['fits'])} of {number(tally.checked)} fit"]
    parts += [f"{number(tally.answers['no'])} do not"] if tally.answers["no"] else []
    parts += [f"{number(tally.answers['unknown'])} unknown"] if tally.answers["unknown"] else []
    parts += [f"{number(tally.skipped)} files are no media"] if tally.skipped else []
    return ", ".join(parts)
