"""The result: everything that was measured, derived and proven, as one JSON document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmcalib.errors import UsageError
from mmcalib.report.files import write_text

SCHEMA_VERSION: Final = 1

# Bytes of a file name that are not UTF-8, as Python holds them.
_SURROGATE = re.compile("[\ud800-\udfff]")

_HINT = "mmcalib run --model MODEL --data DIR --out OUT writes one"

# measured: read from vLLM doing it. rehearsed: from vLLM's code on imaginary memory. computed:
# follows from measured values by vLLM's own rule. assumed: nobody said otherwise. given: by the
# user.
Label = Literal["measured", "rehearsed", "computed", "assumed", "given"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Tool(_Part):
    """Versions that the numbers depend on."""

    mmcalib: str
    vllm: str
    transformers: str
    torch: str
    python: str


class Model(_Part):
    """`doubts` say what the model's source cannot promise."""

    id: str
    source: Literal["local", "hub", "bundled"]
    architecture: str
    doubts: list[str] = Field(default_factory=list)


class Tokens(_Part):
    """Prompt tokens per item; `exemplar` is the path of the heaviest."""

    min: int
    p50: int
    p90: int
    p99: int
    max: int
    exemplar: str
    label: Label = "measured"


class ModalityItems(_Part):
    items: int
    unique_shapes: int
    tokens: Tokens
    heaviest: str


class Corpus(_Part):
    """Item counts: with requests, every mention of an item counts."""

    items: int
    prompts: int
    skipped: int
    modalities: dict[str, ModalityItems]


class Evidence(_Part):
    """Why a setting has its value, and the item or request that set it."""

    setting: str
    value: Any
    label: Label
    reason: str
    exemplar: str = ""


class Limits(_Part):
    limit_mm_per_prompt: dict[str, Any]
    mm_processor_kwargs: dict[str, Any]
    media_io_kwargs: dict[str, Any]
    evidence: list[Evidence]


class EncoderBudget(_Part):
    """Tokens, as vLLM's MultiModalBudget has them for one configuration."""

    encoder_budget_tokens: int
    max_tokens_per_item: dict[str, int]
    items_per_batch: dict[str, int]
    profiled_modality: str | None
    profiled_items: int
    profiled_tokens: int | None
    worst_step_tokens: int | None
    adequacy: float | None
    max_num_batched_tokens: int
    label: Label = "computed"


class Budgets(_Part):
    default: EncoderBudget
    calibrated: EncoderBudget


class Memory(_Part):
    """Bytes on one device; None where nothing has been measured or rehearsed.

    KV cache = requested − weights − buffers − activation peak − non-torch − CUDA graphs. The peak
    is the highest of its phases; the encoder cache when full is part of them.
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


class Memories(_Part):
    """`default` and `calibrated` as rehearsed on a GPU, where one was named, else as measured in
    the engine start; `measured` is always the engine start's, None where it is the same.
    """

    default: Memory
    calibrated: Memory
    measured: Memory | None = None


class FrontierPoint(_Part):
    """One value of one knob: what it does to the corpus and to the budget."""

    knob: str
    modality: str
    value: int | float
    max_tokens: int
    p50_tokens: int
    share_downscaled: float
    worst_retention: float
    encoder_budget_tokens: int
    profiled_items: int
    chosen: bool
    activation_peak_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    label: Label = "measured"


class ReplayResult(_Part):
    prompts: int
    rejected: int
    oom: int
    token_mismatches: int
    encoder_tokens: int
    largest_encoder_step_tokens: int
    left_out: int
    seconds: float


class Startup(_Part):
    """The real engine start; `depth` and `true_depth` are layers (language model, encoder)."""

    device: str
    depth: tuple[int, int]
    true_depth: tuple[int, int]
    seconds: float
    figures: dict[str, float | int | None]
    replay: ReplayResult | None = None


class CheckResult(_Part):
    name: str
    status: Literal["pass", "warn", "fail", "skip"]
    detail: str
    remedy: str = ""


class Calibration(_Part):
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
            return cls.model_validate(json.loads(Path(path).read_bytes()))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HINT) from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            steps = [".".join(str(step) for step in first["loc"]), first["msg"]]
            why = ": ".join(step for step in steps if step)
            raise UsageError(f"{path} is not a calibration: {why}", hint=_HINT) from error
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{path} is not a calibration: not JSON: {error}", hint=_HINT
            ) from error
