"""JSON Schemas of all that is printed or written as JSON; `docs/schemas` has them as files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from mmcalib.derive.admission import Answer, Basis
from mmcalib.report.written import WrittenReport
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.census import CensusDocument, ScannedCorpus
from mmcalib.result.diagnosis import Diagnosis
from mmcalib.result.part import Part
from mmcalib.result.plan import Plan
from mmcalib.result.rehearsal import Rehearsal
from mmcalib.result.validation import Validation

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Counts(Part):
    """What `scan --json` and `merge --json` print: a part of census.json."""

    shards: list[str]
    corpus: ScannedCorpus


class CheckedImage(Part):
    modality: Literal["image"]
    width_px: int
    height_px: int


class CheckedVideo(Part):
    modality: Literal["video"]
    num_frames: int
    fps: float
    duration_s: float
    width_px: int
    height_px: int


class CheckedAudio(Part):
    modality: Literal["audio"]
    num_samples: int
    sample_rate_hz: int


CheckedShape = Annotated[
    CheckedImage | CheckedVideo | CheckedAudio, Field(discriminator="modality")
]


class Offender(Part):
    """One item or request that does not fit, on a line of its own."""

    kind: Literal["item", "prompt"]
    origin: str
    answer: Answer
    tokens: int | None
    embeds: int | None
    exact: bool
    basis: Basis
    reason: str
    remedy: str
    largest: CheckedShape | None
    shapes: list[CheckedShape]


class Summary(Part):
    """The last line of a check."""

    kind: Literal["summary"]
    all_fit: bool
    checked: int
    skipped: int
    fits: int
    no: int
    unknown: int


class BundledModel(Part):
    """One model that calibrates offline."""

    id: str
    architecture: str
    modalities: list[Literal["image", "video", "audio"]]
    cannot_promise: list[str]


# By the name of the file, which is that of the command except for what is kept on disk.
_DOCUMENTS: dict[str, Any] = {
    "calibration": CalibrationDocument,
    "census": CensusDocument,
    "scan": Counts,
    "check": Annotated[Offender | Summary, Field(discriminator="kind")],
    "rehearse": Rehearsal | list[Rehearsal],
    "validate": Validation,
    "plan": Plan,
    "report": WrittenReport,
    "models": list[BundledModel],
    "doctor": Diagnosis,
}
NAMES = tuple(_DOCUMENTS)


def schema(name: str) -> dict[str, Any]:
    """The schema of a document as it is printed; of a line of it for check, which prints lines."""
    found = TypeAdapter(_DOCUMENTS[name]).json_schema(mode="serialization")
    return {"$schema": DIALECT, **found}
