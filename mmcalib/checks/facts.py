"""What checks look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol, TypeVar

from mmcalib.checks.check import Dialect, OptionFacts
from mmcalib.derive.costs import CostTable
from mmcalib.derive.demand import Headroom
from mmcalib.derive.effects import Effect
from mmcalib.derive.fit import Fit
from mmcalib.derive.frontier import Point
from mmcalib.derive.limits import Adequacy, Count, Hint
from mmcalib.derive.policy import Policy
from mmcalib.derive.processor_cache import CacheFloor
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import Knob, Setting
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import ModelInfo, Retention
from mmcalib.domain.shapes import Modality


class Configuration(Protocol):
    """Engine arguments, what they admit, and what vLLM budgets for under them."""

    @property
    def engine_args(self) -> Mapping[str, Any]: ...

    @property
    def counts(self) -> Mapping[Modality, Count]: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def plain(self) -> Budget:
        """The budget without size hints, with its dummies."""
        ...

    @property
    def adequacy(self) -> Adequacy: ...

    @property
    def table(self) -> CostTable: ...


@dataclass(frozen=True, slots=True)
class Configured:
    """One that nobody has derived or written: it is only rehearsed."""

    engine_args: Mapping[str, Any]
    counts: Mapping[Modality, Count]
    budget: Budget
    plain: Budget
    adequacy: Adequacy
    table: CostTable


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
    served the words for it, `unreadable` what vLLM cannot load, `requests` how many there are.
    """

    files: int
    skipped: Sequence[Skipped]
    table: CostTable
    left_out: Mapping[str, str] = field(default_factory=dict)
    over: Over | None = None
    unreadable: Sequence[Skipped] = ()
    requests: int = 0


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


class ExploredKnob(Protocol):
    @property
    def point(self) -> Point: ...


class Derivation(Protocol):
    """What a derived configuration was derived from."""

    @property
    def default_table(self) -> CostTable: ...
    @property
    def default_error(self) -> str: ...
    @property
    def forced_by(self) -> Literal["", "context", "memory"]: ...
    def retention(self) -> Mapping[Modality, Retention]: ...
    @property
    def setting(self) -> Setting: ...
    @property
    def explored(self) -> Sequence[ExploredKnob]: ...
    @property
    def chosen(self) -> Sequence[Point]: ...
    @property
    def ineffective(self) -> Sequence[Knob]: ...
    @property
    def hints(self) -> Mapping[Modality, Hint]: ...
    @property
    def refused_hints(self) -> Mapping[Modality, str]: ...
    @property
    def forced(self) -> str: ...
    @property
    def effects(self) -> Sequence[Effect]: ...

    def turns(self) -> set[Modality]:
        """The modalities whose items an option of the processor makes smaller."""
        ...


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """`prompt` is the longest one that counts, and `longer`: the model takes a context that holds
    it. What the rules of a stage do not read is None.
    """

    dialect: Dialect
    configuration: Configuration
    policy: Policy = field(default_factory=Policy)
    prompt: Fit | Fullest | None = None
    longer: bool = False
    given_corpus: CorpusFacts | None = None
    given_decision: Derivation | None = None
    given_model: ModelInfo | None = None
    given_tries: Tries | None = None
    given_options: OptionFacts | None = None

    @property
    def corpus(self) -> CorpusFacts:
        return _known(self.given_corpus)

    @property
    def decision(self) -> Derivation:
        return _known(self.given_decision)

    @property
    def model(self) -> ModelInfo:
        return _known(self.given_model)

    @property
    def tries(self) -> Tries:
        return _known(self.given_tries)

    @property
    def options(self) -> OptionFacts:
        return _known(self.given_options)

    @property
    def items(self) -> dict[Modality, int]:
        """How many of each modality one prompt may carry."""
        return {m: count.value for m, count in self.configuration.counts.items()}


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
