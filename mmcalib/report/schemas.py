"""JSON Schemas of all that is printed or written as JSON; `docs/schemas` has them as files."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from mmcalib.census.document import ScanDocument
from mmcalib.models.gpus import Gpu
from mmcalib.report.report import WrittenReport
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.check import Offender, Summary
from mmcalib.results.comparison import Comparison
from mmcalib.results.doctor import BundledModel, Diagnosis
from mmcalib.results.memory import Rehearsal
from mmcalib.results.plan import Plan
from mmcalib.results.validation import Validation

DIALECT = "https://json-schema.org/draft/2020-12/schema"


# By the name of the file, which is that of the command except for what is kept on disk.
_DOCUMENTS: dict[str, Any] = {
    "calibration": CalibrationDocument,
    "comparison": Comparison,
    "scan": ScanDocument,
    "check": Annotated[Offender | Summary, Field(discriminator="kind")],
    "rehearse": Rehearsal | list[Rehearsal],
    "validate": Validation,
    "plan": Plan,
    "report": WrittenReport,
    "models": list[BundledModel],
    "gpus": list[Gpu],
    "diff": dict[str, list[tuple[str, str, str]]],
    "doctor": Diagnosis,
}
NAMES = tuple(_DOCUMENTS)


def schema(name: str) -> dict[str, Any]:
    """The schema of a document as it is printed; of a line of it for check, which prints lines."""
    found = TypeAdapter(_DOCUMENTS[name]).json_schema(mode="serialization")
    return {"$schema": DIALECT, **found}
