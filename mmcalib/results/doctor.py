"""Doctor, models, gpus."""

from __future__ import annotations

from collections import Counter
from typing import Literal, Self

from mmcalib.models.catalogue import Geometry, Status
from mmcalib.results.part import CheckResult, DocumentPart

Need = Literal["media", "engine", "optional"]


class Package(DocumentPart):
    """One package, by its name in the index; `version` is None where it is not installed.

    `need`: media and engine are needed by the main job, the others by what `purpose` says.
    """

    name: str
    version: str | None
    need: Need
    purpose: str
    install: str


class Backend(DocumentPart):
    """Where the installed vLLM would run: `device` is cuda, cpu or empty, None where it did not
    answer within `seconds`.
    """

    device: str | None
    vllm: str | None
    torch: str | None
    seconds: float


class PresentGpu(DocumentPart):
    """The first GPU of this machine; `free_bytes` is None where vLLM does not run on it."""

    name: str
    total_bytes: int
    free_bytes: int | None
    capability: str


class Hub(DocumentPart):
    """Where models are fetched from, and whether it answers; `offline`: it was not asked."""

    endpoint: str
    state: Literal["reachable", "unreachable", "offline"]


class Host(DocumentPart):
    """Memory that is free, and the open files that one process may have; None: unknown."""

    platform: str
    python: str
    ram_available_bytes: int | None
    shm_free_bytes: int | None
    open_files: int | None


class Folder(DocumentPart):
    """A folder that is written to, and what for."""

    purpose: Literal["cache", "results", "temporary"]
    path: str
    writable: bool
    free_bytes: int | None


class Diagnosis(DocumentPart):
    """Everything that was looked at. `verdict` fail: `mmcalib run` cannot work here."""

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
    """One model that calibrates offline. `facts` are how many are of each status."""

    id: str
    architecture: str
    modalities: list[Literal["image", "video", "audio"]]
    cannot_promise: list[str]
    facts: dict[Status, int]

    @classmethod
    def of(cls, geometry: Geometry) -> Self:
        statuses = Counter(fact.status for _, fact in geometry.facts())
        return cls.showing(geometry, facts=dict(sorted(statuses.items())))
