"""The configuration that is judged: its model opened, and what vLLM budgets for under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmcalib.checks import limits, reserve
from mmcalib.checks.check import Check
from mmcalib.checks.dialect import line
from mmcalib.checks.reserve import BATCH_HOLDS_ITEM, CONFIGURATION_ACCEPTED
from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import Adequacy, Count
from mmcalib.derive.policy import Policy
from mmcalib.domain.budget import Budget
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.setting import DEFAULT, Setting
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.vllm_config import LISTS_MODELS, context_of, open_model, refusal, takes_no_media
from mmcalib.errors import VllmRefused
from mmcalib.models import ResolvedModel
from mmcalib.progress import Progress
from mmcalib.workflows.decision.budgets import BudgetSource

_CHANGE = "change the setting that it names"


@dataclass(frozen=True, slots=True)
class Subject:
    """`engine_args` as judged, without the model; `plain` is the budget without size hints, both
    with their dummies. `table` has the costs of the items that it is tried with.
    """

    resolved: ResolvedModel
    opened: ModelInfo
    engine_args: dict[str, Any]
    counts: dict[Modality, Count]
    budget: Budget
    plain: Budget
    default_budget: Budget
    adequacy: Adequacy
    table: CostTable = field(default_factory=lambda: CostTable(DEFAULT, {}))

    @property
    def setting(self) -> Setting:
        return setting_of(self.engine_args)


def setting_of(engine_args: Mapping[str, Any]) -> Setting:
    """What of a configuration decides what items cost."""
    return Setting(
        mm_processor_kwargs=engine_args.get("mm_processor_kwargs") or {},
        media_io_kwargs=engine_args.get("media_io_kwargs") or {},
    )


def opened_as(
    host: EngineHost, resolved: ResolvedModel, engine_args: Mapping[str, Any], progress: Progress
) -> ModelInfo | Check:
    """The model as this configuration opens it, or vLLM's refusal as a finding.

    Raises ModelError for one that takes no media.
    """
    tokens = context_of(engine_args)
    text_only = takes_no_media(resolved, ": there is nothing to judge", LISTS_MODELS)
    try:
        opened = open_model(host, resolved, progress, context_tokens=tokens, text_only=text_only)
    except VllmRefused as error:
        return Check(CONFIGURATION_ACCEPTED, "fail", refusal(error), _CHANGE)
    if engine_args.get("disable_chunked_mm_input"):
        opened = replace(opened, chunks_mm_input=False)
    return opened


def accepts(asks: BudgetSource, args: Mapping[str, Any]) -> Budget | None:
    """vLLM's budget of these arguments, with its dummies; None where it refuses them."""
    found = _asked(asks, args, whole=False)
    return None if isinstance(found, str) else found


def takes_context(asks: BudgetSource, args: Mapping[str, Any], tokens: int) -> bool:
    """Whether the model takes a context of so many tokens."""
    return accepts(asks, {**args, "max_model_len": tokens}) is not None


def budgeted(
    asks: BudgetSource, resolved: ResolvedModel, engine_args: Mapping[str, Any], progress: Progress
) -> tuple[Subject | None, list[Check]]:
    """vLLM's budgets under the configuration. Where vLLM refuses it for a batch that is smaller
    than an item, the rest is judged with a batch that is not.
    """
    args, checks = dict(engine_args), list[Check]()
    whole = not asks.opened.chunks_mm_input
    with progress.step("computing the encoder budget"):
        budget = _asked(asks, args, whole=whole)
        if isinstance(budget, str):
            enough = _roomy(asks, args) if whole else None
            if enough is not None:
                # Some platforms forbid chunks where nobody asked for that.
                where = "" if args.get("disable_chunked_mm_input") else " on a GPU"
                remedy = f"{line('max_num_batched_tokens', enough)}, or more"
                detail = f"vLLM does not start{where}: {budget}"
                checks.append(Check(BATCH_HOLDS_ITEM, "fail", detail, remedy))
                args["max_num_batched_tokens"] = enough
                budget = _asked(asks, args, whole=whole)
        plain_args = limits.unhinted(args)
        plain = budget if plain_args == args else _asked(asks, plain_args, whole=whole)
        default, _ = asks.default()
    if isinstance(budget, str) or isinstance(plain, str):
        words = budget if isinstance(budget, str) else str(plain)
        return None, [
            *checks,
            Check(CONFIGURATION_ACCEPTED, "fail", words, _CHANGE),
        ]
    args = limits.as_read(args)
    counts = limits.counts(args, asks.opened)
    adequacy = reserve.reserved(args, budget, counts)
    return Subject(resolved, asks.opened, args, counts, budget, plain, default, adequacy), checks


def _asked(asks: BudgetSource, args: Mapping[str, Any], *, whole: bool) -> Budget | str:
    """The budget with its dummies, or vLLM's refusal; as a GPU server would have it, which forces
    what `whole` says.
    """
    forced = {"disable_chunked_mm_input": True} if whole else {}
    try:
        return asks.of({**args, **forced}, build_dummy=True)
    except VllmRefused as error:
        return refusal(error)


def _roomy(asks: BudgetSource, args: Mapping[str, Any]) -> int | None:
    """The least max_num_batched_tokens that holds an item, None where that is not what is wrong."""
    try:
        budget = asks.roomy(args)
    except VllmRefused:
        return None
    return max(budget.max_tokens_per_item.values(), default=0) or None


def asking(host: EngineHost, opened: ModelInfo, resolved: ResolvedModel) -> BudgetSource:
    return BudgetSource(host, opened, resolved.path, Policy())
