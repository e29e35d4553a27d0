"""Two releases of vLLM beside each other: `mmcalib rehearse --python PATH --json` prints it."""

from __future__ import annotations

from typing import Literal

from mmcalib.domain.release_figure import FigureGroup, FigureLabel, FigureUnit
from mmcalib.result.part import DocumentPart
from mmcalib.result.rehearsal import Rehearsal


class ComparedFigure(DocumentPart):
    """One figure or setting of both, base units. `difference` is after − before, of numbers; null
    where a release has no such thing, or it could not be had.
    """

    group: FigureGroup
    name: str
    unit: FigureUnit
    before: int | float | str | None
    after: int | float | str | None
    difference: int | float | None
    changed: bool
    label: FigureLabel


class ComparedRelease(DocumentPart):
    """One of both: `python` is its interpreter as it was named, empty for mmcalib's own. What it
    refuses of the configuration was left out there; `problems` say what else could not be had.
    """

    vllm: str
    python: str
    versions: dict[str, str]
    refused: dict[str, str]
    problems: list[str]
    rehearsal: Rehearsal | None


class ReleaseComparison(DocumentPart):
    """The same model, GPU and configuration under two releases of vLLM."""

    model: str
    source: Literal["local", "hub", "bundled"]
    config: str
    flags: list[str]
    gpu: str
    mmcalib: str
    before: ComparedRelease
    after: ComparedRelease
    figures: list[ComparedFigure]
