"""Calibration.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import is_
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import ConfigDict, Field, PrivateAttr

from mmcalib.derive.admission import Gate
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import Label
from mmcalib.domain.model import VARIABLES, Retention, Server
from mmcalib.errors import UsageError
from mmcalib.files import read_json
from mmcalib.results.costs import Costs, gate_of
from mmcalib.results.memory import Budgets, Memories, Rehearsal, ServedTraffic, Startup
from mmcalib.results.part import CheckResult, DocumentPart, said_of


class Evidence(DocumentPart):
    """Why a setting has its value, and the item or request that set it. `effect` is what switching
    it off changed.
    """

    setting: str
    value: Any
    label: Label
    reason: str
    exemplar: str = ""
    effect: str = ""


def grouped(evidence: Iterable[Evidence]) -> list[tuple[list[str], list[str], Evidence]]:
    """Neighbours with one reason said once: (settings, their values, the first of them)."""
    found = []
    for _, run in groupby(evidence, key=lambda e: (e.reason, e.label, e.exemplar)):
        entries = list(run)
        values = [str(entry.value) for entry in entries]
        found.append(([entry.setting for entry in entries], values, entries[0]))
    return found


class Tokens(DocumentPart):
    """Prompt tokens per item; `exemplar` is the path of the heaviest."""

    min: int
    p50: int
    p90: int
    p99: int
    max: int
    exemplar: str
    label: Label = "measured"


class ModalityItems(DocumentPart):
    """`tokens` are those under vLLM's default, `kept` is what the calibrated settings leave of
    them. `witnesses`: so many stand-ins were processed, and vLLM's own count, which agreed with all
    of them, stands for the others; None where all were processed.
    """

    items: int
    unique_shapes: int
    tokens: Tokens
    heaviest: str
    witnesses: int | None = None
    kept: Retention | None = None


class Corpus(DocumentPart):
    """Item counts: with requests, every mention of an item counts."""

    items: int
    prompts: int
    skipped: int
    modalities: dict[str, ModalityItems]

    def losses(self) -> list[str]:
        """What calibrated settings take off items: a sentence for each modality they shrink."""
        parts = ((name, part.kept) for name, part in self.modalities.items())
        return [kept.describe(name) for name, kept in parts if kept and kept.items_smaller]


class FrontierPoint(DocumentPart):
    """One value of one knob: what it does to the items of its modality, and to the budget.

    Retention is the share of its tokens that an item keeps, p99 and p50 count every item.
    `process_s` is the mean to load and process one; `resident_items` of the largest fit into the
    encoder cache. `adequacy` is that of the configuration without size hints. `dominated`: another
    point of the modality is nowhere worse. `bleeds`: other modalities whose items it changes too.
    """

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
    mean_retention: float | None = None
    p99_tokens: int | None = None
    process_s: float | None = None
    adequacy: float | None = None
    resident_items: int | None = None
    dominated: bool = False
    bleeds: list[str] = Field(default_factory=list)
    activation_peak_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    label: Literal["measured", "computed"] = "measured"


class CachePoint(DocumentPart):
    """One point of the hit curve."""

    capacity_bytes: int
    hit_rate: float


class ProcessorCache(DocumentPart):
    """The size for `mm_processor_cache_gb` and the hit curve that it was read from.

    An access is one request's use of one item. The curve begins at the least capacity that hits
    at all; below `largest_request_bytes` it is no promise. `admissible_request_bytes` is what one
    request within the limits may bring, and the least size; `wanted_gb` has nearly all of the hits
    that there are, whether it is allowed or not. Both are null in files of earlier versions.
    """

    requests: int
    accesses: int
    distinct: int
    distinct_bytes: int
    largest_request_bytes: int
    admissible_request_bytes: int | None = None
    complete: bool
    mm_processor_cache_gb: float
    total_bytes: int
    wanted_gb: float | None = None
    wanted_hit_rate: float | None = None
    hit_rate: float
    most_hit_rate: float
    default_hit_rate: float
    curve: list[CachePoint]
    label: Literal["computed"] = "computed"


def with_variables(values: Mapping[str, int], command: str) -> str:
    """The command with these in its environment, as a shell reads it."""
    return " ".join([*(f"{name}={value}" for name, value in values.items()), command])


class ServerPart(DocumentPart):
    """`limits` by vLLM's environment variables, `given` those that were set when it was asked;
    `decodes` by video codec. With `needed` in its environment it would also take the items of the
    corpus that were left out.
    """

    limits: dict[str, int]
    given: list[str] = Field(default_factory=list)
    decodes: dict[str, bool] = Field(default_factory=dict)
    lone_frames: bool = True
    torchcodec: bool = False
    needed: dict[str, int] = Field(default_factory=dict)
    label: Literal["measured"] = "measured"

    @classmethod
    def of(cls, server: Server, needed: dict[str, int]) -> ServerPart:
        return cls(
            limits=dict(server.limits),
            given=list(server.given),
            decodes=dict(server.decodes),
            lone_frames=server.lone_frames,
            torchcodec=server.torchcodec,
            needed=needed,
        )

    @property
    def server(self) -> Server:
        return Server(
            self.limits, tuple(self.given), self.decodes, self.lone_frames, self.torchcodec
        )

    @property
    def environment(self) -> dict[str, int]:
        """What a server must have in its environment to let in what this one does. Other variables
        than mmcalib's own are left out: the file may come from somebody else.
        """
        return {n: self.limits[n] for n in VARIABLES if n in self.given and n in self.limits}

    @property
    def wanting(self) -> dict[str, int]:
        """What it would need beside that for the items that were left out."""
        return {n: self.needed[n] for n in VARIABLES if n in self.needed}


SERVE: Final = "vllm serve --config engine.yaml"


def serving(server: ServerPart | None, command: str) -> str:
    """The command that serves with the limits that were raised when the corpus was read."""
    return with_variables(server.environment, command) if server else command


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


C = TypeVar("C", bound=CalibrationDocument)

# A million lines.
_MOST_BYTES: Final = 1 << 28


def calibration_in(source: Path) -> Path:
    """The file itself, or that of a folder of results."""
    return source / "calibration.json" if source.is_dir() else source


def read_calibration(path: str | Path, kind: type[C]) -> C:
    """What `Calibration.save` wrote. Raises UsageError for anything else."""
    try:
        return kind.model_validate(read_json(path, _MOST_BYTES, ("known", "refused")))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=MADE_BY) from error
    except (ValueError, RecursionError) as error:
        said = f"{path} is not a calibration: {said_of(error)}"
        raise UsageError(said, hint=MADE_BY) from error


def read_rehearsal(path: Path) -> Rehearsal | None:
    """What `mmcalib rehearse --json` printed; None where the file is something else."""
    try:
        return Rehearsal.model_validate(read_json(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def skipped_jsonl(skipped: Iterable[Skipped]) -> str:
    """One `{"path", "reason"}` per line. Bytes of a name that are not UTF-8 stay as escapes."""
    return "".join(
        json.dumps({"path": entry.path, "reason": entry.reason}) + "\n" for entry in skipped
    )
