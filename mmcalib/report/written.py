"""What `mmcalib report --json` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict

from mmcalib.report.formats import ConfigurationName, ReportName
from mmcalib.results.part import DocumentPart


class WrittenReport(DocumentPart):
    """What `report --json` wrote, and where."""

    model_config = ConfigDict(title="Written")

    written: str
    format: Literal[ReportName, ConfigurationName]
    bytes: int

    @classmethod
    def of(cls, path: Path, name: str) -> Self:
        """Of a file that is there."""
        found = {"written": str(path), "format": name, "bytes": path.stat().st_size}
        return cls.model_validate(found)
