"""The result: everything that was measured, derived and proven, as one JSON document."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from operator import is_
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, PrivateAttr, ValidationError

from mmcalib.checks.check import Check
from mmcalib.derive.admission import Admission, Gate
from mmcalib.documents import read_json
from mmcalib.domain.server import Server
from mmcalib.errors import UsageError
from mmcalib.report.cache import ProcessorCache
from mmcalib.report.costs import Costs, gate_of
from mmcalib.report.encoder_sweep import EncoderSweep
from mmcalib.report.files import write_text
from mmcalib.report.frontier import FrontierPoint
from mmcalib.report.part import Part
from mmcalib.report.presented import admitted
from mmcalib.report.processor_device import ProcessorDevice
from mmcalib.report.server import ServerPart
from mmcalib.report.startup import Startup
from mmcalib.report.throughput import Throughput
from mmcalib.texts.counting import Counting

SCHEMA_VERSION: Final = 1

# Bytes of a file name that are not UTF-8, as Python holds them.
_SURROGATE = re.compile("[\ud800-\udfff]")

# A million shapes.
_MOST_BYTES: Final = 1 << 28
_LONG: Final = ("known", "refused")
_HINT = "mmcalib run --model MODEL --data DIR --out OUT writes one"

# measured: read from vLLM doing it. rehearsed: from vLLM's code on imaginary memory. computed:
# follows from measured values by vLLM's own rule. assumed: nobody said otherwise. given: by the
# user.
Label = Literal["measured", "rehearsed", "computed", "assumed", "given"]


class Tool(Part):
    """Versions that the numbers depend on."""

    mmcalib: str
    vllm: str
    transformers: str
    torch: str
    python: str


class Model(Part):
    """`doubts` say what the model's source cannot promise."""

    id: str
    source: Literal["local", "hub", "bundled"]
    architecture: str
    doubts: list[str] = Field(default_factory=list)


class Tokens(Part):
    """Prompt tokens per item; `exemplar` is the path of the heaviest."""

    min: int
    p50: int
    p90: int
    p99: int
    max: int
    exemplar: str
    label: Label = "measured"


class ModalityItems(Part):
    items: int
    unique_shapes: int
    tokens: Tokens
    heaviest: str


class Corpus(Part):
    """Item counts: with requests, every mention of an item counts."""

    items: int
    prompts: int
    skipped: int
    modalities: dict[str, ModalityItems]


class Evidence(Part):
    """Why a setting has its value, and the item or request that set it. `effect` is what switching
    it off changed.
    """

    setting: str
    value: Any
    label: Label
    reason: str
    exemplar: str = ""
    effect: str = ""


class Limits(Part):
    limit_mm_per_prompt: dict[str, Any]
    mm_processor_kwargs: dict[str, Any]
    media_io_kwargs: dict[str, Any]
    evidence: list[Evidence]


class EncoderBudget(Part):
    """Tokens, as vLLM's MultiModalBudget has them for one configuration; `resident_items` of the
    corpus' largest fit into its encoder cache at once.
    """

    encoder_budget_tokens: int
    max_tokens_per_item: dict[str, int]
    items_per_batch: dict[str, int]
    profiled_modality: str | None
    profiled_items: int
    profiled_tokens: int | None
    worst_step_tokens: int | None
    adequacy: float | None
    max_num_batched_tokens: int
    resident_items: dict[str, int] = Field(default_factory=dict)
    label: Label = "computed"


class Budgets(Part):
    default: EncoderBudget
    calibrated: EncoderBudget


class Memory(Part):
    """Bytes on one device; None where nothing has been measured or rehearsed.

    KV cache = requested − weights − buffers − activation peak − non-torch − CUDA graphs. The peak
    is the highest of its phases; while serving a full encoder cache takes its part of that.
    """

    total_bytes: int | None = None
    requested_bytes: int | None = None
    weights_bytes: int | None = None
    buffers_bytes: int | None = None
    encoder_peak_bytes: int | None = None
    language_model_peak_bytes: int | None = None
    sampler_peak_bytes: int | None = None
    encoder_cache_bytes: int | None = None
    activation_peak_bytes: int | None = None
    non_torch_bytes: int | None = None
    cudagraph_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    max_concurrency: float | None = None
    label: Label | None = None
    labels: dict[str, Label] = Field(default_factory=dict)
    gpu: str | None = None
    note: str = ""


class Memories(Part):
    """`default` and `calibrated` as rehearsed on a GPU, where one was named, else as measured in
    the engine start; `measured` is always the engine start's, None where it is the same.
    """

    default: Memory
    calibrated: Memory
    measured: Memory | None = None


class CheckResult(Part):
    name: str
    status: Literal["pass", "warn", "fail", "skip"]
    detail: str
    remedy: str = ""

    @classmethod
    def of(cls, check: Check) -> CheckResult:
        return cls(name=check.name, status=check.status, detail=check.detail, remedy=check.remedy)


def first_failed(checks: Iterable[CheckResult]) -> CheckResult:
    """The one to name where the verdict is no."""
    return next(check for check in checks if check.status == "fail")


class Calibration(Part):
    """What `mmcalib.calibrate` returns and `calibration.json` holds."""

    schema_version: Literal[1] = SCHEMA_VERSION
    created_at: str
    tool: Tool
    model: Model
    corpus: Corpus
    limits: Limits
    engine_config: dict[str, Any]
    budget: Budgets
    memory: Memories
    frontier: list[FrontierPoint]
    startup: Startup | None
    checks: list[CheckResult]
    verdict: Literal["pass", "fail"]
    costs: Costs | None = None
    cache: ProcessorCache | None = None
    encoder_sweep: EncoderSweep | None = None
    processor_device: ProcessorDevice | None = None
    throughput: Throughput | None = None
    server: ServerPart | None = None

    _gate: tuple[tuple[object, ...], Gate] | None = PrivateAttr(default=None)
    _counting: tuple[object, Counting | None] | None = PrivateAttr(default=None)

    @property
    def gate(self) -> Gate:
        """What the configuration admits. Raises UsageError where no costs were kept."""
        # Built once; a copy with other fields has another.
        made_of = (self.costs, self.engine_config, self.budget, self.server)
        if self.costs is None:
            raise UsageError("the calibration has no costs: it is an old one", hint=_HINT)
        if self._gate is None or not all(map(is_, self._gate[0], made_of)):
            budget = self.budget.calibrated.encoder_budget_tokens
            server = self.server.server if self.server else Server()
            self._gate = made_of, gate_of(self.costs, self.engine_config, budget, server)
        return self._gate[1]

    @property
    def counting(self) -> Counting | None:
        """What counts texts without vLLM, by the checkpoint's files; None without a recipe."""
        if self._counting is None or self._counting[0] is not self.costs:
            recipe = self.costs.recipe if self.costs else None
            model = str(self.engine_config.get("model", self.model.id))
            self._counting = self.costs, Counting(model, recipe) if recipe else None
        return self._counting[1]

    def admits(
        self, item: Any, *, allowed_local_media_path: str | os.PathLike[str] | None = None
    ) -> Admission:
        """Whether one item or chat request fits. Needs no vLLM.

        `item` is a path, bytes or a binary file, of which the header is read; a `PIL.Image` as it
        is; a numpy array: an image (height × width, or with channels), or frames (number × height ×
        width × channels) as a client sends them, one a second; sound as `(array, rate_hz)`; a chat
        request as a dict, whose files lie below `allowed_local_media_path` (default: the working
        folder); or a shape. What cannot be read does not fit.

        Raises TypeError for anything else, and UsageError as `gate` does, or for a request that
        leads outside that folder.
        """
        return admitted(self.gate, item, allowed_local_media_path, self.counting)

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

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically. Raises OutputError when that is not possible."""
        write_text(Path(path), self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote. Raises UsageError for anything else."""
        try:
            return cls.model_validate(read_json(path, _MOST_BYTES, _LONG))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HINT) from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            steps = [".".join(str(step) for step in first["loc"]), first["msg"]]
            why = ": ".join(step for step in steps if step)
            raise UsageError(f"{path} is not a calibration: {why}", hint=_HINT) from error
        except (ValueError, RecursionError) as error:
            said = str(error) if type(error) is ValueError else f"not JSON: {error}"
            raise UsageError(f"{path} is not a calibration: {said}", hint=_HINT) from error
