"""Models of the document that `mmcalib validate --json` prints."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmcalib.checks.check import Taken
from mmcalib.results.calibration import Corpus
from mmcalib.results.memory import EncoderBudget, Memory, Startup
from mmcalib.results.part import CheckResult, DocumentPart, verdict_words


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
