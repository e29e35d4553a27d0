"""The result: everything that was measured, derived and proven, as one JSON document."""

from __future__ import annotations

import json
import re
from operator import is_
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field, PrivateAttr

from mmcalib.derive.gate import Gate
from mmcalib.domain.server import Server
from mmcalib.errors import UsageError
from mmcalib.result.budget import Budgets
from mmcalib.result.check_result import CheckResult
from mmcalib.result.corpus_counts import Corpus
from mmcalib.result.costs import Costs, gate_of
from mmcalib.result.evidence import Evidence
from mmcalib.result.frontier import FrontierPoint
from mmcalib.result.memory import Memories
from mmcalib.result.part import DocumentPart
from mmcalib.result.processor_cache import ProcessorCache
from mmcalib.result.server import ServerPart
from mmcalib.result.startup import Startup
from mmcalib.result.traffic import ServedTraffic

SCHEMA_VERSION: Final = 1
MADE_BY: Final = "mmcalib run --model MODEL --data DIR --out OUT writes one"

# Bytes of a file name that are not UTF-8, as Python holds them.
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tool(DocumentPart):
    """Versions that the numbers depend on."""

    mmcalib: str
    vllm: str
    transformers: str
    torch: str
    python: str


class Model(DocumentPart):
    """`doubts` say what the model's source cannot promise."""

    id: str
    source: Literal["local", "hub", "bundled"]
    architecture: str
    doubts: list[str] = Field(default_factory=list)


class Preprocessing(DocumentPart):
    """CPU seconds, of all threads, to load and process an item: the mean over the corpus, computed
    from so many `measured_files`.
    """

    cpu_s_per_item: float
    measured_files: int
    label: Literal["computed"] = "computed"


class Limits(DocumentPart):
    limit_mm_per_prompt: dict[str, Any]
    mm_processor_kwargs: dict[str, Any]
    media_io_kwargs: dict[str, Any]
    evidence: list[Evidence]


class YourConfiguration(DocumentPart):
    """What the user gave to start from: `file` is empty where flags say it all, `engine_config` as
    vLLM reads it. `compared` of it mmcalib derives anew; `diff` leads from it to the tuned one.
    """

    file: str
    engine_config: dict[str, Any]
    compared: list[str]
    diff: str
    refused: str = ""


class CalibrationDocument(DocumentPart):
    """What `mmcalib.calibrate` returns and `calibration.json` holds. `default_config` is what the
    user says and the default that is compared with has, too.
    """

    model_config = ConfigDict(title="Calibration")

    schema_version: Literal[1] = SCHEMA_VERSION
    created_at: str
    tool: Tool
    model: Model
    corpus: Corpus
    limits: Limits
    engine_config: dict[str, Any]
    default_config: dict[str, Any] = Field(default_factory=dict)
    yours: YourConfiguration | None = None
    budget: Budgets
    memory: Memories
    frontier: list[FrontierPoint]
    startup: Startup | None
    checks: list[CheckResult]
    verdict: Literal["pass", "fail"]
    costs: Costs | None = None
    cache: ProcessorCache | None = None
    preprocessing: Preprocessing | None = None
    server: ServerPart | None = None
    traffic: ServedTraffic | None = None

    _gate: tuple[tuple[object, ...], Gate] | None = PrivateAttr(default=None)

    @property
    def gate(self) -> Gate:
        """What the configuration admits. Raises UsageError where no costs were kept."""
        # Built once; a copy with other fields has another.
        made_of = (self.costs, self.engine_config, self.budget, self.server)
        if self.costs is None:
            raise UsageError("the calibration has no costs: it is an old one", hint=MADE_BY)
        known = self._gate
        if known is None or not all(map(is_, known[0], made_of)):
            budget = self.budget.calibrated.encoder_budget_tokens
            server = self.server.server if self.server else Server()
            known = made_of, gate_of(self.costs, self.engine_config, budget, server)
            self._gate = known
        return known[1]

    def engine_args(self) -> dict[str, Any]:
        """Keyword arguments for `vllm.LLM`, names and nesting as vLLM has them."""
        copied: dict[str, Any] = json.loads(json.dumps(self.engine_config))
        return copied

    def to_json(self) -> str:
        """The document as text that is UTF-8 whatever names the corpus holds: what of a name is
        not stays an escape, as in `skipped.jsonl`.
        """
        text = json.dumps(self.model_dump(), indent=2, ensure_ascii=False)
        return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
