"""What `mmcalib list gpus --json` lists."""

from __future__ import annotations

from typing import Literal, Self

from mmcalib.gpus.gpu import Gpu
from mmcalib.result.part import DocumentPart


class KnownGpu(DocumentPart):
    """One GPU of the catalogue. `total_bytes` is torch's `total_memory`; found: seen in public, as
    `source` says; inferred: from a sibling. Without `rehearses` only its memory can be planned.
    """

    name: str
    torch_name: str
    total_bytes: int
    total_status: Literal["found", "inferred", "given", "read"]
    capability: str | None
    sm_count: int | None
    rehearses: bool
    unified: bool
    source: str

    @classmethod
    def of(cls, gpu: Gpu) -> Self:
        return cls(
            name=gpu.name,
            torch_name=gpu.torch_name,
            total_bytes=gpu.total_bytes,
            total_status=gpu.total_status,
            capability=".".join(map(str, gpu.capability)) if gpu.capability else None,
            sm_count=gpu.sm_count,
            rehearses=not gpu.memory_only,
            unified=gpu.unified,
            source=gpu.source,
        )
