"""What a server's log said, and how far a rehearsal of the same is from it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmcalib.derive.anchor import PartName, Unit
from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.logs.log_release import KnownBy
from mmcalib.result.memory import Memory
from mmcalib.result.part import DocumentPart


class ReleaseOfLog(DocumentPart):
    """The release that a log is taken for: `versions` has several where they cannot be told apart,
    none where it is unknown. `known_by` is `stated` (it says so), `lines` (of source, which the
    log names: `evidence`) or `unknown`; `contradicts`: what it says is not what its lines tell.
    """

    versions: list[str]
    known_by: KnownBy
    evidence: list[str]
    contradicts: bool
    words: str


class ClosedSum(DocumentPart):
    """Whether one worker's figures add up: `left_bytes` of what was requested remain by its parts,
    `stated_bytes` is its KV cache, and rounding allows `tolerance_bytes`.
    """

    parts: list[str]
    line: int
    process: str | None
    left_bytes: int
    stated_bytes: int
    tolerance_bytes: int
    closes: bool


class PartApart(DocumentPart):
    """One line of the account: `log` is measured, `rehearsed` of the log's own configuration,
    `difference` the second less the first; `apart`: by more than `tolerance`.
    """

    name: PartName
    unit: Unit
    log: int
    rehearsed: int
    difference: int
    tolerance: int
    apart: bool


class Logged(DocumentPart):
    """What a server's log said; `memory` has the figures that it states, all measured.

    `parts` holds it against the rehearsal of its own configuration. `planned_from` is `log` where
    the KV caches are further apart than the tolerance: then every figure of the plan is the log's,
    plus what was rehearsed to change. `reason` says why it is planned so. `oom` is the error with
    which the server ran out of GPU memory.
    """

    vllm: str
    model: str
    memory: Memory
    failures: list[str]
    notes: list[str]
    oom: ObservedOom | None = None
    release: ReleaseOfLog | None = None
    sums: list[ClosedSum] = Field(default_factory=list)
    parts: list[PartApart] = Field(default_factory=list)
    planned_from: Literal["log", "rehearsal"] = "rehearsal"
    reason: str = ""
