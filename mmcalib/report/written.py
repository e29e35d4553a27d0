"""What `mmcalib report --json` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, ConfigDict, WithJsonSchema

from mmcalib.report.registry import CONFIGURATIONS, REPORTS
from mmcalib.result.part import DocumentPart

_NAMES: Final = (*REPORTS, *CONFIGURATIONS)


def _known(name: str) -> str:
    if name not in _NAMES:
        raise ValueError(f"none of {', '.join(_NAMES)}")
    return name


FormatName = Annotated[
    str, AfterValidator(_known), WithJsonSchema({"enum": [*_NAMES], "type": "string"})
]


class WrittenReport(DocumentPart):
    """What `report --json` wrote, and where."""

    model_config = ConfigDict(title="Written")

    written: str
    format: FormatName
    bytes: int

    @classmethod
    def of(cls, path: Path, name: str) -> Self:
        """Of a file that is there."""
        return cls(written=str(path), format=name, bytes=path.stat().st_size)
