"""What checks look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeVar

from mmcalib.checks.check import Dialect, OptionFacts
from mmcalib.derive.costs import CostTable
from mmcalib.derive.demand import Headroom
from mmcalib.derive.effects import Effect
from mmcalib.derive.fit import Fit
from mmcalib.derive.frontier import Point, retention
from mmcalib.derive.limits import Adequacy, Count, Hint
from mmcalib.derive.policy import Policy
from mmcalib.derive.processor_cache import CacheFloor
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import DEFAULT, Knob, Setting
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import ModelInfo, Retention
from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class JudgedConfig:
    """Engine arguments, what they admit, and what vLLM budgets for under them. `plain` is the
    budget without size hints; both have their dummies. `table` has the costs of the items that the
    configuration is tried with.
    """

    engine_args: dict[str, Any]
    counts: Mapping[Modality, Count]
    budget: Budget
    plain: Budget
    adequacy: Adequacy
    table: CostTable = field(default_factory=lambda: CostTable(DEFAULT, {}))

    @property
    def items_per_prompt(self) -> dict[Modality, int]:
        """How many of each modality one prompt may carry."""
        return {modality: count.value for modality, count in self.counts.items()}


@dataclass(frozen=True, slots=True)
class Explored:
    """One point of the frontier with vLLM's budget for it."""

    point: Point
    budget: Budget
    engine_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedConfig(JudgedConfig):
    """A configuration and what it was derived from. `chosen` has one point of each knob that has an
    effect; `forced` says why it is not what the policy alone would choose, and `forced_by` what
    lacks.
    """

    default_table: CostTable
    default_error: str
    setting: Setting
    explored: tuple[Explored, ...]
    chosen: tuple[Point, ...]
    ineffective: tuple[Knob, ...]
    hints: dict[Modality, Hint]
    refused_hints: dict[Modality, str]
    forced: str = ""
    forced_by: Literal["", "context", "memory"] = ""
    effects: tuple[Effect, ...] = ()

    def retention(self) -> dict[Modality, Retention]:
        """What items keep of the tokens that they take by default."""
        before = self.default_table
        return {m: retention(self.table.of(m), before.of(m)) for m in before.modalities()}

    def turns(self) -> set[Modality]:
        """The modalities whose items an option of the processor makes smaller."""
        knobs = (explored.point.knob for explored in self.explored)
        return {knob.modality for knob in knobs if not knob.by_loader}


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Over:
    """`requests` of all carry more items than the limits admit, `first` such; `most` items of each
    modality that any request carries.
    """

    requests: int
    of: int
    first: str
    most: Mapping[Modality, int]


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    """What was read. `table` has what vLLM refuses of it, `left_out` per modality that is not
    served the words for it, `unreadable` what vLLM cannot load, `requests` how many there are, and
    how many of them have `tools`.
    """

    files: int
    skipped: Sequence[Skipped]
    table: CostTable
    left_out: Mapping[str, str] = field(default_factory=dict)
    over: Over | None = None
    unreadable: Sequence[Skipped] = ()
    requests: int = 0
    tools: int = 0


@dataclass(frozen=True, slots=True)
class Fullest:
    """A prompt of so many of the largest items of each modality: (items, tokens of one). `own`: the
    items are the user's.
    """

    most: Mapping[Modality, tuple[int, int]]
    own: bool


@dataclass(frozen=True, slots=True)
class Tries:
    """`without`: the budget if the modality that sets it, and that nobody limits, were switched
    off, and `gain` what that brings in memory; `cures` are lines with which an under-reserved
    configuration passes; `room` was rehearsed; `cache_floor` is what one request that is admitted
    may bring, None where vLLM keeps no processed items.
    """

    without: Budget | None = None
    gain: str = ""
    cures: Sequence[str] = ()
    room: Headroom | None = None
    cache_floor: CacheFloor | None = None


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """`prompt` is the longest one that counts, and `longer`: the model takes a context that holds
    it. What the rules of a stage do not read is None.
    """

    dialect: Dialect
    configuration: JudgedConfig
    policy: Policy = field(default_factory=Policy)
    prompt: Fit | Fullest | None = None
    longer: bool = False
    given_corpus: CorpusFacts | None = None
    given_model: ModelInfo | None = None
    given_tries: Tries | None = None
    given_options: OptionFacts | None = None

    @property
    def _derived(self) -> DerivedConfig | None:
        return self.configuration if isinstance(self.configuration, DerivedConfig) else None

    @property
    def corpus(self) -> CorpusFacts:
        return _known(self.given_corpus)

    @property
    def decision(self) -> DerivedConfig:
        return _known(self._derived)

    @property
    def model(self) -> ModelInfo:
        return _known(self.given_model)

    @property
    def tries(self) -> Tries:
        return _known(self.given_tries)

    @property
    def options(self) -> OptionFacts:
        return _known(self.given_options)


def _known(value: T | None) -> T:
    if value is None:
        raise LookupError("a rule of this stage reads what its facts do not have")
    return value


class CheckStage(Enum):
    """When checks are made: of `run` once it has decided; of `validate` once vLLM's budget for the
    file is known, of its options, and once the items of a corpus were measured under it.
    """

    DECIDED = "run"
    WRITTEN = "validate"
    OPTIONS = "validate, options beside the profile"
    MEASURED = "validate, with a corpus"
