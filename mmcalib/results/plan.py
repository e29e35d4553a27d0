"""Models of the document that `mmcalib plan --json` prints."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.fixes import Cost
from mmcalib.results.memory import Memory
from mmcalib.results.part import CheckResult, DocumentPart


class Price(DocumentPart):
    """One fix and its cost."""

    name: str
    flags: str = Field(description="vLLM flags with the new values")
    cost: Cost
    price: str = Field(description="The cost in words")


class TriedFix(Price):
    """One fix, rehearsed alone. Figures are null if it could not be rehearsed."""

    changes: dict[str, Any] = Field(description="Engine arguments, merged with the configuration")
    reaches: bool | None = Field(description="True: this fix alone reaches the goal")
    lacking_bytes: int | None = Field(description="KV cache still missing for the goal")
    kv_cache_bytes: int | None
    kv_cache_tokens: int | None
    max_concurrency: float | None
    problem: str = Field(description="Why it was not rehearsed")
    warning: str = Field(description="Costs that `price` omits")


class Combination(DocumentPart):
    """The cheapest fixes that reach the goal, or the best that do not."""

    fixes: list[Price] = Field(description="`flags` have the values of the whole combination")
    flags: str
    changes: dict[str, Any] = Field(description="Engine arguments, merged with the configuration")
    reaches: bool
    proven: bool = Field(description="Every fix is needed, or nothing reaches the goal")
    reserved: CheckResult | None = Field(default=None, description="Null: does not start")
    memory: Memory


class LogSummary(DocumentPart):
    """Facts from a server's log."""

    vllm: str
    model: str
    failures: list[str]
    notes: list[str]
    oom: ObservedOom | None = Field(default=None, description="The out-of-memory error")


class Plan(DocumentPart):
    """Which fixes reach the goal."""

    goal: str
    kept: list[str] = Field(default_factory=list, description="Arguments that no fix may change")
    verdict: Literal["reached already", "reached", "under-reserved", "out of reach"] = Field(
        description="under-reserved: the fixes reach the goal, but load may exhaust the memory"
    )
    reserved: CheckResult | None = Field(default=None, description="Null: goal not reached as is")
    memory: Memory = Field(description="Before any fix")
    lacking_bytes: int = Field(description="KV cache missing for the goal")
    fixes: list[TriedFix]
    combination: Combination | None
    others: list[Combination] = Field(
        default_factory=list, description="Also reach the goal; each avoids a cost of `combination`"
    )
    log: LogSummary | None
    model: str
    source: Literal["local", "hub", "bundled"]
    config: str
    gpu: str
    capability: str
    vllm: str
    mmcalib: str
    rehearsals: int
    assumptions: list[str]
