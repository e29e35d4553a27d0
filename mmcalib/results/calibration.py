"""Calibration.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import is_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr

from mmcalib.derive.admission import Gate
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import Label
from mmcalib.domain.model import VARIABLES, Quantile, Retention, Server
from mmcalib.errors import UsageError
from mmcalib.files import read_json
from mmcalib.releases.constants import PROCESSOR_CACHES
from mmcalib.results.costs import Costs, gate_of
from mmcalib.results.memory import Budgets, Memories, Rehearsal, ServedTraffic, Startup
from mmcalib.results.part import CheckResult, DocumentPart, said_of
from mmcalib.text import GIB


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
    alike = groupby(evidence, key=lambda e: (e.reason, e.label, e.exemplar))
    runs = [list(run) for _, run in alike]
    return [([e.setting for e in run], [str(e.value) for e in run], run[0]) for run in runs]


class ModalityItems(DocumentPart):
    """`tokens` of the prompt per item are those under vLLM's default, `heaviest` and `exemplar` the
    size and the path of the item of most; `kept` is what the calibrated settings leave of
    them. `witnesses`: so many stand-ins were processed, and vLLM's own count, which agreed with all
    of them, stands for the others; None where all were processed.
    """

    items: int
    unique_shapes: int
    tokens: dict[Quantile, int]
    heaviest: str
    exemplar: str
    witnesses: int | None = None
    kept: Retention | None = None

    @property
    def label(self) -> Label:
        """How the tokens are known."""
        return "measured" if self.witnesses is None else "computed"


class Corpus(DocumentPart):
    """Item counts: with requests, every mention of an item counts."""

    prompts: int
    skipped: int
    modalities: dict[str, ModalityItems]

    @property
    def items(self) -> int:
        return sum(part.items for part in self.modalities.values())

    def losses(self) -> list[str]:
        """What calibrated settings take off items: a sentence for each modality they shrink."""
        parts = ((name, part.kept) for name, part in self.modalities.items())
        return [kept.describe(name) for name, kept in parts if kept and kept.items_smaller]


class FrontierPoint(DocumentPart):
    """One value of one knob: what it does to the items of its modality, and to the budget.

    Retention is the share of its tokens that an item keeps, p99 and p50 count every item.
    `process_s` is the mean to load and process one; `resident_items` of the largest fit into the
    encoder cache. `adequacy` is that of the configuration without size hints. `choice`: beaten is
    one that was not chosen where another of the modality is nowhere worse. `bleeds`: other
    modalities whose items it changes too.
    """

    knob: str
    modality: str
    value: int | float
    max_tokens: int
    p99_tokens: int
    p50_tokens: int
    share_downscaled: float
    mean_retention: float
    worst_retention: float
    process_s: float
    encoder_budget_tokens: int
    profiled_items: int
    adequacy: float
    resident_items: int | None
    choice: Literal["chosen", "beaten", "open"]
    bleeds: tuple[str, ...] = ()
    activation_peak_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    label: Literal["measured", "computed"] = "measured"


class ProcessorCache(DocumentPart):
    """The size for `mm_processor_cache_gb` and the hit curve that it was read from, *computed*.

    An access is one request's use of one item. The curve has (capacity in bytes, hit rate), and
    begins at the least capacity that hits at all; the last hits as often as any. `wanted` is the
    size in GiB that has nearly all of the hits, and its rate, where more is wanted than is allowed.
    """

    label: ClassVar[Label] = "computed"

    requests: int
    accesses: int
    complete: bool
    mm_processor_cache_gb: float
    hit_rate: float
    default_hit_rate: float
    wanted: tuple[float, float] | None
    curve: tuple[tuple[int, float], ...]

    @property
    def most_hit_rate(self) -> float:
        """That of a cache that forgets nothing."""
        return self.curve[-1][1] if self.curve else 0.0

    @property
    def total_bytes(self) -> int:
        """What it may hold in all processes of a server."""
        return round(self.mm_processor_cache_gb * GIB) * PROCESSOR_CACHES


def with_variables(values: Mapping[str, int], command: str) -> str:
    """The command with these in its environment, as a shell reads it."""
    return " ".join([*(f"{name}={value}" for name, value in values.items()), command])


SERVE: Final = "vllm serve --config engine.yaml"


def serving(server: Server, command: str) -> str:
    """The command that serves with the limits that were raised when the corpus was read."""
    return with_variables(server.environment, command)


SCHEMA_VERSION: Final = 2
MADE_BY: Final = "mmcalib run --model MODEL --data DIR --out OUT writes one"

# Bytes of a file name that are not UTF-8, as Python holds them.
_SURROGATE = re.compile("[\ud800-\udfff]")


_PACKAGES: Final = frozenset({"mmcalib", "vllm", "transformers", "torch", "python"})


def _with_packages(tool: dict[str, str]) -> dict[str, str]:
    if missing := _PACKAGES - tool.keys():
        raise ValueError(f"no version of {', '.join(sorted(missing))}")
    return tool


class Model(DocumentPart):
    """`doubts` say what the model's source cannot promise."""

    id: str
    source: Literal["local", "hub", "bundled"]
    architecture: str
    doubts: list[str] = Field(default_factory=list)


class Preprocessing(DocumentPart):
    """CPU seconds, of all threads, to load and process an item: the mean over the corpus,
    *computed* from so many `measured_files`.
    """

    label: ClassVar[Label] = "computed"

    cpu_s_per_item: float
    measured_files: int


class YourConfiguration(DocumentPart):
    """What the user gave to start from: `file` is empty where flags say it all, `engine_config` as
    vLLM reads it. `diff` leads from it to the tuned one; `refused`: why vLLM does not take it.
    """

    file: str
    engine_config: dict[str, Any]
    diff: str
    refused: str = ""


class CalibrationDocument(DocumentPart):
    """What `mmcalib.calibrate` returns and `calibration.json` holds. `tool` are the versions that
    the numbers depend on, by package; `evidence` has the reason of each setting, in the order of
    `engine_config`. `default_config` is what the user says and the default that is compared with
    has, too. With `needed` in its environment the server would also take the items of the corpus
    that were left out.
    """

    model_config = ConfigDict(title="Calibration")

    schema_version: Literal[2] = SCHEMA_VERSION
    created_at: str
    tool: Annotated[dict[str, str], AfterValidator(_with_packages)]
    model: Model
    corpus: Corpus
    evidence: list[Evidence]
    engine_config: dict[str, Any]
    default_config: dict[str, Any] = Field(default_factory=dict)
    yours: YourConfiguration | None = None
    budget: Budgets
    memory: Memories
    frontier: list[FrontierPoint]
    startup: Startup | None
    checks: list[CheckResult]
    verdict: Literal["pass", "fail"]
    costs: Costs
    cache: ProcessorCache | None = None
    preprocessing: Preprocessing | None = None
    server: Server
    needed: dict[str, int] = Field(default_factory=dict)
    traffic: ServedTraffic | None = None

    _gate: tuple[tuple[object, ...], Gate] | None = PrivateAttr(default=None)

    @property
    def gate(self) -> Gate:
        """What the configuration admits. Raises UsageError where its limits are not there."""
        # Built once; a copy with other fields has another.
        made_of = (self.costs, self.engine_config, self.budget, self.server, self.model)
        known = self._gate
        if known is None or not all(map(is_, known[0], made_of)):
            budget = self.budget.calibrated.encoder_budget_tokens
            args = self.costs, self.engine_config, budget, self.server, self.model.architecture
            known = self._gate = made_of, gate_of(*args)
        return known[1]

    @property
    def wanting(self) -> dict[str, int]:
        """`needed`, without variables that are not mmcalib's own: the file may come from somebody
        else.
        """
        return {n: self.needed[n] for n in VARIABLES if n in self.needed}

    @property
    def limits(self) -> Mapping[str, Any]:
        """`limit_mm_per_prompt`, by modality; empty where a file changed by hand has none."""
        found = self.engine_config.get("limit_mm_per_prompt")
        return found if isinstance(found, Mapping) else {}

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
        found = read_json(path, _MOST_BYTES, ("known", "refused"))
        version = found.get("schema_version") if isinstance(found, dict) else None
        if isinstance(version, int) and version != SCHEMA_VERSION:
            age = "an older" if version < SCHEMA_VERSION else "a newer"
            raise UsageError(
                f"{path} is a calibration of {age} mmcalib: its schema_version is {version}, and "
                f"this one reads {SCHEMA_VERSION}",
                hint="mmcalib run again",
            )
        return kind.model_validate(found)
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
