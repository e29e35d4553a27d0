"""What `mmcalib models --json` lists."""

from __future__ import annotations

from typing import Literal

from mmcalib.result.part import DocumentPart


class BundledModel(DocumentPart):
    """One model that calibrates offline."""

    id: str
    architecture: str
    modalities: list[Literal["image", "video", "audio"]]
    cannot_promise: list[str]
