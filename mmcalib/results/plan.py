"""Models of the documents that `mmcalib plan` and `mmcalib validate` print with `--json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmcalib.checks.check import Taken
from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.fixes import Cost
from mmcalib.results.calibration import Corpus
from mmcalib.results.memory import EncoderBudget, Memory, Startup
from mmcalib.results.part import CheckResult, DocumentPart, verdict_words


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


class ValidatedBudgets(DocumentPart):
    """Encoder budget by configuration."""

    default: EncoderBudget = Field(description="vLLM's defaults, same context")
    config: EncoderBudget


class ValidatedMemory(DocumentPart):
    """Memory by configuration, rehearsed with `--gpu`."""

    default: Memory | None
    config: Memory | None
    measured: Memory | None = Field(description="From the engine start")
    # Rows "of buffers" are part of `buffers_bytes`, the others come on top of the profile.
    options: list[Taken] = Field(
        default_factory=list, description="Most that options of the file take; computed"
    )


class Validation(DocumentPart):
    """Which settings take effect, and whether the engine survives every accepted request.

    If vLLM rejects the configuration, `engine_config` and all that depends on it are null.
    """

    checks: list[CheckResult]
    verdict: Literal["pass", "fail"]
    config: str
    flags: list[str]
    model: str
    source: Literal["local", "hub", "bundled"] | None
    architecture: str
    engine_config: dict[str, Any] | None = Field(description="As vLLM parses it")
    budget: ValidatedBudgets | None
    memory: ValidatedMemory | None
    startup: Startup | None
    items: Literal["none", "corpus", "made up"] = Field(description="Media used for the test")
    corpus: Corpus | None = Field(default=None, description="Their costs; null: not measured")
    gpu: str
    tool: dict[str, str]
    doubts: list[str]

    def __repr__(self) -> str:
        return f"<Validation of {self.config}: verdict {verdict_words(self.verdict, self.checks)}>"

    __str__ = __repr__
