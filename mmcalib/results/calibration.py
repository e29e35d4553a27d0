"""Models of `calibration.json`, which `run` writes, and of `comparison.json` for several runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field

from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import Label
from mmcalib.domain.model import VARIABLES, Quantile, Retention, Server
from mmcalib.errors import MmcalibError, UsageError, VerdictError
from mmcalib.files import read_json
from mmcalib.gate.admission import ChatLimit, Gate
from mmcalib.releases.constants import PROCESSOR_CACHES, PROMPT_ARGUMENTS
from mmcalib.results.costs import Costs, build_gate
from mmcalib.results.memory import Budgets, Memories, Memory, Rehearsal, ServedTraffic, Startup
from mmcalib.results.part import CheckResult, DocumentPart, error_text, first_failed
from mmcalib.text import GIB


class Evidence(DocumentPart):
    """Why a setting has its value."""

    setting: str = Field(description="Dotted name of the setting")
    value: Any
    label: Label
    reason: str
    exemplar: str = Field(default="", description="Item or request that set the value")
    effect: str = Field(default="", description="Effect of removing the setting")


def group_evidence(evidence: Iterable[Evidence]) -> list[tuple[list[str], list[str], Evidence]]:
    """Merge neighbours that share a reason: (settings, their values, the first evidence)."""
    groups = groupby(evidence, key=lambda e: (e.reason, e.label, e.exemplar))
    runs = [list(group) for _, group in groups]
    return [([e.setting for e in run], [str(e.value) for e in run], run[0]) for run in runs]


class ModalityItems(DocumentPart):
    """Items of one modality and their tokens under vLLM's defaults."""

    items: int = Field(description="Accepted items; requests count each mention")
    unique_shapes: int
    tokens: dict[Quantile, int] = Field(description="Prompt tokens per item, by quantile")
    heaviest: str = Field(description="Shape of the item with the most tokens")
    exemplar: str = Field(description="Path of that item")
    witnesses: int | None = Field(
        default=None,
        description="Shapes measured; vLLM's own formula counted the rest; null: all measured",
    )
    kept: Retention | None = Field(default=None, description="Share of tokens left")
    least_kept: float | None = Field(
        default=None, description="Least share of an original that the model's own limits keep"
    )
    given: int = Field(default=0, description="Items given by size, without a file")

    @property
    def label(self) -> Label:
        """given: at least one item has no file, and was measured as a blank of its size."""
        if self.given:
            return "given"
        return "measured" if self.witnesses is None else "computed"


class Corpus(DocumentPart):
    """The media and requests that were read; all measured."""

    prompts: int = Field(description="Usable requests; 0 without `--requests`")
    skipped: int = Field(description="Lines of `skipped.jsonl`")
    modalities: dict[str, ModalityItems]

    @property
    def items(self) -> int:
        return sum(part.items for part in self.modalities.values())

    def losses(self) -> list[str]:
        """Return a sentence for each modality whose items the calibrated settings shrink."""
        parts = ((name, part.kept) for name, part in self.modalities.items())
        return [kept.describe(name) for name, kept in parts if kept and kept.items_smaller]


_Rounded = Annotated[float, AfterValidator(lambda value: round(value, 6))]


class FrontierPoint(DocumentPart):
    """One value of one processor option, the others as chosen; `--gpu` adds the memory figures."""

    knob: str = Field(description="Processor option")
    modality: str
    value: int | float = Field(description="Value tried")
    max_tokens: int = Field(description="Largest item")
    p99_tokens: int
    p50_tokens: int
    share_downscaled: _Rounded = Field(description="Share of items that lose tokens")
    mean_retention: _Rounded = Field(description="Mean share of tokens an item keeps")
    worst_retention: _Rounded = Field(description="Lowest such share; 0: vLLM rejects the item")
    items_shrunk: int | None = Field(default=None, description="Images above this limit")
    items_gaining: int = Field(default=0, description="Items shrunk by default that gain tokens")
    mean_enlargement: _Rounded = Field(default=1.0, description="Mean tokens ÷ the default's")
    process_s: _Rounded = Field(description="Mean time to load and process an item")
    encoder_budget_tokens: int
    profiled_items: int
    adequacy: float = Field(description="Profiled tokens ÷ worst step, without size hints")
    resident_items: int | None = Field(description="Largest items that fit the encoder cache")
    choice: Literal["chosen", "beaten", "open"] = Field(
        description="beaten: another value is better somewhere and nowhere worse"
    )
    bleeds: tuple[str, ...] = Field(default=(), description="Other modalities that it changes")
    activation_peak_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    label: Literal["measured", "computed"] = Field(
        default="measured", description="computed: vLLM's own formula counted some items"
    )


class ProcessorCache(DocumentPart):
    """Size of vLLM's processor cache, computed. An access is one request's use of one item."""

    label: ClassVar[Label] = "computed"

    requests: int
    accesses: int
    complete: bool = Field(description="False: only the first 4,000,000 accesses were read")
    mm_processor_cache_gb: float = Field(description="Size in GiB; 0 switches the cache off")
    hit_rate: float = Field(description="Share of accesses")
    default_hit_rate: float = Field(description="With vLLM's default of 4 GiB")
    wanted: tuple[float, float] | None = Field(
        description="GiB and hit rate for 95 % of the possible hits, if above the allowed size"
    )
    curve: tuple[tuple[int, float], ...] = Field(description="Capacity in bytes, hit rate")

    @property
    def max_hit_rate(self) -> float:
        """Hit rate of a cache that never evicts."""
        return self.curve[-1][1] if self.curve else 0.0

    @property
    def total_bytes(self) -> int:
        """Bytes that the caches of all server processes may hold together."""
        return round(self.mm_processor_cache_gb * GIB) * PROCESSOR_CACHES


def with_environment(values: Mapping[str, int], command: str) -> str:
    """Return the shell command with these environment variables."""
    return " ".join([*(f"{name}={value}" for name, value in values.items()), command])


SERVE: Final = "vllm serve --config engine.yaml"
SCHEMA_VERSION: Final = 3
MADE_BY: Final = "create it with mmcalib run --model MODEL --data DIR --out OUT"

# About a million lines.
_MAX_BYTES: Final = 1 << 28
_PACKAGES: Final = frozenset({"mmcalib", "vllm", "transformers", "torch", "python"})


def _with_packages(tool: dict[str, str]) -> dict[str, str]:
    if missing := _PACKAGES - tool.keys():
        raise ValueError(f"no version of {', '.join(sorted(missing))}")
    return tool


class Model(DocumentPart):
    """The model's config and where it came from."""

    id: str
    source: Literal["local", "hub", "bundled"]
    architecture: str
    doubts: list[str] = Field(default_factory=list, description="Facts the source cannot confirm")


class ChatItems(DocumentPart):
    """Items that a chat holds before HTTP 400."""

    shape: str
    exemplar: str
    tokens: int
    items: int = Field(description="One per turn")
    limit: ChatLimit
    most_items: int = Field(description="With a higher count")
    sound_s: float | None = Field(default=None, description="Audio")


class Conversation(DocumentPart):
    """A chat that resends its history."""

    label: Literal["computed", "assumed"]
    first_tokens: int = Field(description="Text")
    turn_tokens: int = Field(description="Text and answer")
    request: str = Field(description="Source of the text; empty: reserve")
    typical: ChatItems = Field(description="Median")
    largest: ChatItems


class Preprocessing(DocumentPart):
    """CPU time to load and process an item on this machine, computed."""

    label: ClassVar[Label] = "computed"

    cpu_s_per_item: float = Field(description="Mean over the corpus, all threads")
    measured_files: int = Field(description="Files that were timed")


class YourConfiguration(DocumentPart):
    """The configuration passed by `--config` or flags."""

    file: str = Field(description="Empty: flags only")
    engine_config: dict[str, Any] = Field(description="As vLLM parses it")
    diff: str = Field(description="Unified diff to the calibrated one")
    refused: str = Field(default="", description="vLLM's error, if it rejects the configuration")


class CalibrationDocument(DocumentPart):
    """The result of `mmcalib run` and `mmcalib.calibrate`."""

    model_config = ConfigDict(title="Calibration")

    schema_version: Literal[3] = Field(default=SCHEMA_VERSION, description="Others are rejected")
    created_at: str = Field(description="UTC, ISO 8601")
    tool: Annotated[dict[str, str], AfterValidator(_with_packages)] = Field(
        description="Versions of mmcalib, vllm, transformers, torch and python"
    )
    model: Model
    corpus: Corpus
    evidence: list[Evidence] = Field(description="In the order of `engine_config`")
    engine_config: dict[str, Any] = Field(description="The settings of `engine.yaml`")
    default_config: dict[str, Any] = Field(
        default_factory=dict, description="Your vLLM flags, which the compared default has too"
    )
    yours: YourConfiguration | None = None
    budget: Budgets
    memory: Memories
    frontier: list[FrontierPoint] = Field(description="Every value tried")
    startup: Startup | None = Field(description="Null without an engine start")
    checks: list[CheckResult]
    verdict: Literal["pass", "fail"] = Field(description="fail: at least one check failed")
    costs: Costs
    cache: ProcessorCache | None = Field(default=None, description="Null without requests")
    preprocessing: Preprocessing | None = Field(default=None, description="Null: no file was timed")
    server: Server
    counted_by: str = Field(default="", description="Processor that counted tokens")
    needed: dict[str, int] = Field(
        default_factory=dict, description="vLLM variables that would admit the excluded items"
    )
    traffic: ServedTraffic | None = Field(default=None, description="Null without `--gpu`")
    conversations: dict[str, Conversation] = Field(default_factory=dict, description="By modality")

    @cached_property
    def gate(self) -> Gate:
        """The rules that accept or reject items. Raises UsageError if the limits are missing."""
        budget = self.budget.calibrated.encoder_budget_tokens
        args = self.costs, self.engine_config, budget, self.server, self.model.architecture
        return build_gate(*args)

    def __copy__(self) -> Self:
        """Drop cached values: the copy may get other fields."""
        copied = super().__copy__()
        for name in vars(copied).keys() - type(self).model_fields:
            del vars(copied)[name]
        return copied

    @property
    def needed_variables(self) -> dict[str, int]:
        """`needed`, limited to known variables: the file may come from elsewhere."""
        return {n: self.needed[n] for n in VARIABLES if n in self.needed}

    @property
    def limits(self) -> Mapping[str, Any]:
        """`limit_mm_per_prompt` by modality; empty if someone edited it out of the file."""
        limits = self.engine_config.get("limit_mm_per_prompt")
        return limits if isinstance(limits, Mapping) else {}

    def engine_args(self) -> dict[str, Any]:
        """Return keyword arguments for `vllm.LLM`, without options that only its server takes."""
        copied: dict[str, Any] = json.loads(json.dumps(self.engine_config))
        return {name: copied[name] for name in copied if name not in PROMPT_ARGUMENTS}

    def to_json(self) -> str:
        """Return the document as UTF-8 text; bytes of names that are not UTF-8 stay escaped."""
        text = json.dumps(self.model_dump(), indent=2, ensure_ascii=False)
        # Python decodes such bytes as surrogates, which this spells as JSON does.
        return text.encode(errors="backslashreplace").decode()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved calibration, or the one in a results folder. Raises UsageError."""
        file = find_calibration(Path(path))
        try:
            document = read_json(file, _MAX_BYTES)
            version = document.get("schema_version") if isinstance(document, dict) else None
            if isinstance(version, int) and version != SCHEMA_VERSION:
                age = "an older" if version < SCHEMA_VERSION else "a newer"
                raise UsageError(
                    f"{file} was written by {age} mmcalib: its schema_version is {version}, and "
                    f"this one reads {SCHEMA_VERSION}",
                    hint="mmcalib run again",
                )
            return cls.model_validate(document)
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}", hint=MADE_BY) from error
        except (ValueError, RecursionError) as error:
            message = f"{file} is not a calibration: {error_text(error)}"
            raise UsageError(message, hint=MADE_BY) from error


def find_calibration(source: Path) -> Path:
    """Return the file itself, or the one in a results folder."""
    return source / "calibration.json" if source.is_dir() else source


def read_rehearsal(path: Path) -> Rehearsal | None:
    """Read the output of `mmcalib rehearse --json`; return None for any other file."""
    try:
        return Rehearsal.model_validate(read_json(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def skipped_jsonl(skipped: Iterable[Skipped]) -> str:
    """Return one `{"path", "reason"}` per line; bytes that are not UTF-8 stay escaped."""
    return "".join(
        json.dumps({"path": entry.path, "reason": entry.reason}) + "\n" for entry in skipped
    )


class ComparedRun(DocumentPart):
    """One calibrated model on one GPU. Memory figures are rehearsed, and null without a GPU."""

    model: str
    gpu: str | None
    folder: str = Field(description="Subfolder with the results")
    verdict: Literal["pass", "fail"]
    starts: bool | None = None
    kv_cache_tokens: int | None = None
    kv_cache_bytes: int | None = Field(default=None, description="Negative: the shortfall")
    total_bytes: int | None = Field(default=None, description="Memory of the GPU")
    max_model_len: int | None = None
    max_concurrency: float | None = Field(default=None, description="Full-length requests at once")
    detail_kept: float | None = Field(
        default=None, description="Mean share of tokens that an item keeps"
    )
    serves_whole: bool = Field(default=False, description="Passes, and shrinks or rejects nothing")
    max_num_batched_tokens: int | None = None
    price_per_h: float | None = Field(default=None, description="Of the GPU, as given")
    problem: str = Field(default="", description="Why the verdict is fail")
    remedy: str = ""

    @property
    def price_of_one(self) -> float | None:
        """Price per hour of one full-length request in flight."""
        if self.price_per_h is None or not self.max_concurrency:
            return None
        return self.price_per_h / self.max_concurrency

    @classmethod
    def of(cls, run: CalibrationDocument, gpu: str | None, folder: str) -> Self:
        """Summarize a finished run."""
        memory = run.memory.calibrated if gpu else Memory()
        failed = first_failed(run.checks) if run.verdict == "fail" else None
        parts = run.corpus.modalities.values()
        kept = sum(part.items * (part.kept.mean if part.kept else 1.0) for part in parts)
        refused = run.needed or (run.traffic and run.traffic.calibrated.refused)
        return cls.from_value(
            memory,
            run,
            model=run.model.id,
            gpu=gpu,
            folder=folder,
            max_model_len=run.engine_config.get("max_model_len"),
            detail_kept=kept / run.corpus.items,
            serves_whole=not (failed or run.corpus.losses() or refused),
            max_num_batched_tokens=run.engine_config.get("max_num_batched_tokens"),
            problem=f"{failed.name}: {failed.detail}" if failed else "",
            remedy=failed.remedy if failed else "",
        )

    @classmethod
    def from_error(cls, error: MmcalibError, model: str, gpu: str | None, folder: str) -> Self:
        """Summarize a run that ended early."""
        starts = False if isinstance(error, VerdictError) else None
        why: dict[str, Any] = {"problem": error.message, "remedy": error.hint}
        return cls(model=model, gpu=gpu, folder=folder, verdict="fail", starts=starts, **why)


class Comparison(DocumentPart):
    """All combinations of models and GPUs, in the order given."""

    mmcalib: str
    runs: list[ComparedRun]
