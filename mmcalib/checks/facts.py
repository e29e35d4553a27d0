"""The facts that checks read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mmcalib.checks.check import RemedyStyle
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import DEFAULT, Knob, Setting
from mmcalib.domain.memory import Budget, RehearsedMemory
from mmcalib.domain.model import ModelInfo, Retention
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.gate.fit import Fit
from mmcalib.limits.costs import CostTable
from mmcalib.limits.demand import Shortfall
from mmcalib.limits.effects import Effect
from mmcalib.limits.frontier import Point, compute_retention
from mmcalib.limits.policy import Policy
from mmcalib.limits.processor_cache import NOT_SIZED, CacheFloor, DecidedCache
from mmcalib.limits.values import Count, Hint, ProfileReserve, Rounding
from mmcalib.remedies.memory import Remedy


@dataclass(frozen=True, slots=True)
class JudgedConfig:
    """Engine arguments, the counts they admit, and vLLM's encoder budget with its dummy items.
    `plain` is the budget without size hints. `table` has the costs of the items it is tried with.
    """

    engine_args: dict[str, Any]
    counts: Mapping[Modality, Count]
    budget: Budget
    plain: Budget
    adequacy: ProfileReserve
    table: CostTable = field(default_factory=lambda: CostTable(DEFAULT, {}))

    @property
    def items_per_prompt(self) -> dict[Modality, int]:
        """The most items of each modality in one prompt."""
        return {modality: count.value for modality, count in self.counts.items()}


@dataclass(frozen=True, slots=True)
class Explored:
    """One point of the frontier with vLLM's budget for it."""

    point: Point
    budget: Budget
    engine_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(JudgedConfig):
    """The configuration to emit, and its sources. `chosen` has one point of each knob that has an
    effect. `forced` says why the policy's own choice failed, `forced_by` what was too small, and
    `unforced` what would make it work; `rounding` is the step's, to whole items; `remedies` apply.
    """

    default_table: CostTable
    default_budget: Budget
    default_error: str
    unreadable: tuple[Skipped, ...]
    longest: Fit | None
    setting: Setting
    explored: tuple[Explored, ...]
    chosen: tuple[Point, ...]
    ineffective: tuple[Knob, ...]
    hints: dict[Modality, Hint]
    refused_hints: dict[Modality, str]
    forced: str = ""
    forced_by: Literal["", "context", "memory"] = ""
    unforced: str = ""
    effects: tuple[Effect, ...] = ()
    rounding: Rounding = "up"
    remedies: tuple[Remedy, ...] = ()
    cache: DecidedCache = NOT_SIZED

    @property
    def raises_detail(self) -> bool:
        """True if items may take more than the model's default."""
        return any(point.is_beyond_default for point in self.chosen)

    @property
    def most_detailed_table(self) -> CostTable:
        """The costs at the model's own limits, or at higher ones."""
        return self.table if self.raises_detail else self.default_table

    def retention(self) -> dict[Modality, Retention]:
        """The share of their default tokens that items keep."""
        before = self.default_table
        return {
            m: compute_retention(self.table.columns_of(m), before.columns_of(m))
            for m in before.modalities()
        }

    def shrinkable_modalities(self) -> set[Modality]:
        """The modalities whose items a processor option can make smaller."""
        knobs = (explored.point.knob for explored in self.explored)
        return {knob.modality for knob in knobs if not knob.is_loader_option}


@dataclass(frozen=True, slots=True)
class ExcessRequests:
    """`requests` out of `of` carry more items than the limits admit; `most` in any request."""

    requests: int
    of: int
    first: str
    most: Mapping[Modality, int]


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    """The data as read. `left_out` describes each modality that is not served. `table` includes the
    items that vLLM rejects, `unreadable` has those that it cannot load. `tools` is the number of
    requests with tools, `given` that of items without a file.
    """

    files: int
    skipped: Sequence[Skipped]
    table: CostTable
    left_out: Mapping[str, str] = field(default_factory=dict)
    over: ExcessRequests | None = None
    unreadable: Sequence[Skipped] = ()
    requests: int = 0
    tools: int = 0
    given: int = 0


@dataclass(frozen=True, slots=True)
class LargestPrompt:
    """Per modality (items, tokens of one) of its largest items; `own` if they are the user's."""

    most: Mapping[Modality, tuple[int, int]]
    own: bool


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Alternatives that `validate` tried. `without` is the budget with the deciding unlimited
    modality off, `gain` describes it. `remedies` are lines that pass. `cache_floor` is what one
    request may bring, None without a cache, and `largest_bytes` one processed item. `run` tried
    copies of the largest items: `same_cost` is the smallest that takes as many tokens.
    """

    without: Budget | None = None
    gain: str = ""
    remedies: Sequence[str] = ()
    short: Shortfall | None = None
    cache_floor: CacheFloor | None = None
    largest_bytes: Mapping[Modality, int] = field(default_factory=dict)
    same_cost: Mapping[Modality, Shape] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OptionFacts:
    """Facts for the checks of options that take memory outside vLLM's profile. `served` has all
    arguments of `vllm serve`, those of its front end too. `vocab_size` is 0 if unknown. `memory`
    is the rehearsal, if any, and `steps` those of the worst step of each modality.
    """

    served: Mapping[str, Any] = field(default_factory=dict)
    vocab_size: int = 0
    memory: RehearsedMemory | None = None
    steps: Mapping[Modality, RehearsedMemory] = field(default_factory=dict)

    @property
    def encoder_peak_bytes(self) -> int | None:
        return self.memory.encoder_peak_bytes if self.memory else None


# Of a fact that a stage does not provide: a check that reads it raises AttributeError.
_MISSING: Any = None


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """Everything that a check may read; `longer`: the model accepts a context for `prompt`."""

    dialect: RemedyStyle
    configuration: JudgedConfig
    policy: Policy = field(default_factory=Policy)
    prompt: Fit | LargestPrompt | None = None
    longer: bool = False
    corpus: CorpusFacts = _MISSING
    model: ModelInfo = _MISSING
    tries: Alternatives = _MISSING
    options: OptionFacts = _MISSING

    @property
    def decision(self) -> Decision:
        assert isinstance(self.configuration, Decision)
        return self.configuration
