"""What a plan found, as one document: `mmcalib plan --json` prints it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.fixes import Cost
from mmcalib.results.memory import Memory
from mmcalib.results.part import CheckResult, DocumentPart


class Price(DocumentPart):
    """What one fix costs; `flags` say what its arguments become."""

    name: str
    flags: str
    cost: Cost
    price: str


class TriedFix(Price):
    """One fix on its own. Figures are None where it was not rehearsed, and `problem` says why.
    `changes` and `flags` have whole values, merged with the configuration.

    `reaches`: it alone reaches the goal; `lacking_bytes` of KV cache are lacking to it. `warning`:
    what its price does not say.
    """

    changes: dict[str, Any]
    reaches: bool | None
    lacking_bytes: int | None
    kv_cache_bytes: int | None
    kv_cache_tokens: int | None
    max_concurrency: float | None
    problem: str
    warning: str


class Combination(DocumentPart):
    """The cheapest that reaches the goal, or the best of those that do not. The flags of each of
    its `fixes` are what its arguments become under all.

    `changes` are engine arguments, merged with those that were there; `flags` say the same.
    `proven`: nothing in it can be left out, or no combination reaches the goal. `reserved` is R4
    under it, as `validate` judges it; None where it does not start.
    """

    fixes: list[Price]
    flags: str
    changes: dict[str, Any]
    reaches: bool
    proven: bool
    reserved: CheckResult | None = None
    memory: Memory


class Logged(DocumentPart):
    """What a server's log said; `oom` is the error with which it ran out of GPU memory."""

    vllm: str
    model: str
    failures: list[str]
    notes: list[str]
    oom: ObservedOom | None = None


class Plan(DocumentPart):
    """Which fixes reach the goal. `verdict`: the goal is reached already, or by the combination, or
    by what may run out of memory under load (`under-reserved`), or out of reach. `lacking_bytes` is
    the KV cache that the goal needs beyond `memory`'s; `reserved` is R4 of it as it is, None where
    the goal is not reached so. `kept` is what no fix may change; `others` reach the goal, too, each
    without a cost that `combination` has.
    """

    goal: str
    kept: list[str] = Field(default_factory=list)
    verdict: Literal["reached already", "reached", "under-reserved", "out of reach"]
    reserved: CheckResult | None = None
    memory: Memory
    lacking_bytes: int
    fixes: list[TriedFix]
    combination: Combination | None
    others: list[Combination] = Field(default_factory=list)
    log: Logged | None
    model: str
    source: Literal["local", "hub", "bundled"]
    config: str
    gpu: str
    capability: str
    vllm: str
    mmcalib: str
    rehearsals: int
    assumptions: list[str]
