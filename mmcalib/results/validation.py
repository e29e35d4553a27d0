"""What a validation found, as one document: `mmcalib validate --json` prints it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmcalib.checks.check import Taken
from mmcalib.results.calibration import Corpus
from mmcalib.results.memory import EncoderBudget, Memory, Startup
from mmcalib.results.part import CheckResult, DocumentPart, verdict_words


class ValidatedBudgets(DocumentPart):
    """vLLM's defaults at the same context, and the configuration."""

    default: EncoderBudget
    config: EncoderBudget


class ValidatedMemory(DocumentPart):
    """As rehearsed on a GPU where one was named; `measured` is the engine start's. `options` of
    the file take what they name on top at most, *computed*, but for what says *of buffers*.
    """

    default: Memory | None
    config: Memory | None
    measured: Memory | None
    options: list[Taken] = Field(default_factory=list)


class Validation(DocumentPart):
    """Whether a configuration does what it says and survives what it admits.

    `engine_config` is what vLLM reads in the file and the flags, None where it cannot be read; what
    depends on it is None then too. `items` are the media that it was tried with; `corpus` is what
    they cost under the configuration, None where none were measured.
    """

    checks: list[CheckResult]
    verdict: Literal["pass", "fail"]
    config: str
    flags: list[str]
    model: str
    source: Literal["local", "hub", "bundled"] | None
    architecture: str
    engine_config: dict[str, Any] | None
    budget: ValidatedBudgets | None
    memory: ValidatedMemory | None
    startup: Startup | None
    items: Literal["none", "corpus", "made up"]
    corpus: Corpus | None = None
    gpu: str
    tool: dict[str, str]
    doubts: list[str]

    def __repr__(self) -> str:
        return f"<Validation of {self.config}: verdict {verdict_words(self.verdict, self.checks)}>"

    __str__ = __repr__
