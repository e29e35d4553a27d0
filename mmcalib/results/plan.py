"""Models of the documents that `mmcalib plan` and `mmcalib validate` print with `--json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmcalib.checks.check import Taken
from mmcalib.limits.demand import ObservedOom
from mmcalib.limits.policy import Cost
from mmcalib.remedies.log import LogAnswer
from mmcalib.remedies.memory import Proposal
from mmcalib.results.calibration import Corpus
from mmcalib.results.memory import EncoderBudget, Memory, Startup
from mmcalib.results.part import CheckResult, DocumentPart, verdict_words

Verdict = Literal[
    "reached already",
    "reached",
    "under-reserved",
    "out of reach",
    "not rehearsed",
    "not reproduced",
]


class TriedFixes(DocumentPart):
    """One rehearsed combination; `cost` and `price` are of the fix tried last."""

    flags: str
    changes: dict[str, Any] = Field(description="Engine arguments, merged with the configuration")
    cost: Cost
    price: str
    reaches: bool
    lacking_bytes: int = Field(description="KV cache, or room for a step, still missing")
    kv_cache_bytes: int | None = Field(description="Null if it could not be rehearsed")
    kv_cache_tokens: int | None
    problem: str = Field(description="Why it is out of the question")


class Combination(DocumentPart):
    """The least fixes that reach the goal, rehearsed together."""

    fixes: list[Proposal] = Field(description="With the values of the whole combination")
    flags: str
    changes: dict[str, Any] = Field(description="Engine arguments, merged with the configuration")
    proven: bool = Field(description="Every fix is needed")
    reserved: CheckResult | None = Field(default=None, description="Null: not checked")
    memory: Memory


class Plan(DocumentPart):
    """Which fixes reach the goal. Without rehearsals, `log` is the whole answer."""

    goal: str
    kept: list[str] = Field(default_factory=list, description="Arguments that no fix may change")
    verdict: Verdict = Field(
        description="under-reserved: it starts, but load may exhaust the memory"
    )
    reserved: CheckResult | None = Field(default=None, description="Null: goal not reached as is")
    memory: Memory | None = Field(default=None, description="Before any fix")
    lacking_bytes: int = Field(default=0, description="KV cache missing for the goal")
    tried: list[TriedFixes] = Field(default_factory=list, description="All that was rehearsed")
    combination: Combination | None = Field(default=None, description="Null: none needed or found")
    least: str = Field(default="", description="What would do if nothing reaches the goal")
    log: LogAnswer | None = Field(default=None, description="What the log answers by itself")
    oom: ObservedOom | None = Field(default=None, description="The log's error, rehearsed")
    logged: Memory | None = Field(default=None, description="The log's configuration, rehearsed")
    anchored_bytes: int | None = Field(
        default=None, description="The log's KV cache minus the rehearsed one: added to all others"
    )
    notes: list[str] = Field(default_factory=list, description="What rehearsals do not share")
    problem: str = Field(default="", description="Why nothing was rehearsed")
    model: str = ""
    source: Literal["local", "hub", "bundled"] | None = None
    config: str = ""
    gpu: str = ""
    capability: str = ""
    vllm: str = ""
    mmcalib: str
    rehearsals: int = 0
    assumptions: list[str] = Field(default_factory=list)


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
    architecture: str = ""
    engine_config: dict[str, Any] | None = Field(description="As vLLM parses it")
    budget: ValidatedBudgets | None = None
    memory: ValidatedMemory | None = None
    startup: Startup | None = None
    items: Literal["none", "corpus", "made up"] = Field(
        default="none", description="Media used for the test"
    )
    corpus: Corpus | None = Field(default=None, description="Their costs; null: not measured")
    gpu: str
    tool: dict[str, str]
    doubts: list[str]

    def __repr__(self) -> str:
        return f"<Validation of {self.config}: verdict {verdict_words(self.verdict, self.checks)}>"
