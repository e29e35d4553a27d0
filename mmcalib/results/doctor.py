"""Models of `doctor --json`, `list models --json` and `scan --json`."""

from __future__ import annotations

from collections import Counter
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt

from mmcalib.domain.shapes import Modality
from mmcalib.models.catalogue import Geometry, Status
from mmcalib.results.part import CheckResult, DocumentPart

Need = Literal["media", "engine", "optional"]


class Package(DocumentPart):
    """One package."""

    name: str
    version: str | None = Field(description="Null: not installed")
    need: Need = Field(description="`mmcalib run` needs media and engine packages")
    purpose: str
    install: str


class Backend(DocumentPart):
    """The installed vLLM."""

    device: str | None = Field(description="cuda, cpu or empty; null: no answer in `seconds`")
    vllm: str | None
    torch: str | None
    seconds: float


class PresentGpu(DocumentPart):
    """The first GPU of this machine."""

    name: str
    total_bytes: int
    free_bytes: int | None = Field(description="Null: vLLM does not run on this GPU")
    capability: str


class Hub(DocumentPart):
    """The model hub and its state; `offline` means that mmcalib did not try to reach it."""

    endpoint: str
    state: Literal["reachable", "unreachable", "offline"]


class Host(DocumentPart):
    """Free memory and the limit of open files per process; null: unknown."""

    platform: str
    python: str
    ram_available_bytes: int | None
    shm_free_bytes: int | None
    open_files: int | None


class Folder(DocumentPart):
    """A folder that mmcalib writes to."""

    purpose: Literal["cache", "results", "temporary"]
    path: str
    writable: bool
    free_bytes: int | None


class Diagnosis(DocumentPart):
    """The state of the installation and the machine; fail: `mmcalib run` cannot work here."""

    mmcalib: str
    packages: list[Package]
    backend: Backend
    gpu: PresentGpu | None
    hub: Hub
    host: Host
    folders: list[Folder]
    checks: list[CheckResult]
    verdict: Literal["pass", "fail"]


class BundledModel(DocumentPart):
    """One model that calibrates offline."""

    id: str
    architecture: str
    modalities: list[Literal["image", "video", "audio"]]
    cannot_promise: list[str]
    facts: dict[Status, int] = Field(description="Number of facts, by status")

    @classmethod
    def of(cls, geometry: Geometry) -> Self:
        statuses = Counter(fact.status for _, fact in geometry.facts())
        return cls.from_value(geometry, facts=dict(sorted(statuses.items())))


class ScannedModality(DocumentPart):
    items: PositiveInt
    unique_shapes: PositiveInt


class ScannedCorpus(DocumentPart):
    """Counts of a corpus. With requests, every mention of an item counts. `files` counts the paths,
    `skipped` the unusable files and requests, `distinct` the items of different content, if that
    was requested, `given` the items without a file.
    """

    items: NonNegativeInt
    prompts: NonNegativeInt
    files: NonNegativeInt
    skipped: NonNegativeInt
    modalities: dict[Modality, ScannedModality]
    distinct: PositiveInt | None = None
    given: NonNegativeInt = 0


class SkippedItem(DocumentPart):
    """A file or request that could not be used."""

    path: str
    reason: str


class ScanDocument(DocumentPart):
    """The output of `scan --json`; `skipped` is sorted by path."""

    corpus: ScannedCorpus
    skipped: list[SkippedItem]
