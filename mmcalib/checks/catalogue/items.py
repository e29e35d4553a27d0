"""Traps that items show: larger than the encoder cache, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import Dialect, line, line_of
from mmcalib.checks.facts import CheckFacts, Need
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.derive.cost_columns import CostColumns
from mmcalib.derive.costs import CostTable
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.domain.area_cap import AreaCap
from mmcalib.domain.budget import Budget
from mmcalib.domain.knobs import Knob
from mmcalib.domain.nested import merged
from mmcalib.domain.shapes import Modality, weight
from mmcalib.wording import several, several_are

ADMITTED = CheckId("items admitted")
STILL_ACCEPTED = CheckId("items still accepted")
KEPT_WHOLE = CheckId("items kept whole")
CAP_HELD = CheckId("image cap held")
SHRUNK = CheckId("images within the model's own cap")


def admitted(
    table: CostTable,
    budget: Budget,
    knobs: Iterable[Knob],
    dialect: Dialect,
    engine_args: Mapping[str, Any],
) -> Check | None:
    """The encoder cache must hold each item of the corpus whole, or its request ends with HTTP
    400.
    """
    largest = table.largest()
    if largest is None:
        return None
    limit, number = budget.encoder_budget_tokens, dialect.number
    over = 0
    for modality in table.modalities():
        costs = table.of(modality)
        over += int(costs.counts[costs.embeds > limit].sum())
    if not over:
        detail = f"largest item {number(largest.embeds)} tokens, encoder cache {number(limit)}"
        named = f"{detail}: {largest.exemplar}"
        return Check(ADMITTED, "pass", named, names=(largest.exemplar,))
    ends = dialect.say(flags="", lines=" and end with HTTP 400")
    return Check(
        ADMITTED,
        "fail",
        f"{number(over)} items exceed the encoder cache of "
        f"{number(limit)} tokens{ends}; {largest.exemplar} takes {number(largest.embeds)}",
        dialect.say(
            flags=f"{dialect.setting('max_num_batched_tokens', largest.embeds)} or more",
            lines=_room(largest, budget, knobs, engine_args),
        ),
        (largest.exemplar,),
    )


def _room(
    item: ItemCost, budget: Budget, knobs: Iterable[Knob], engine_args: Mapping[str, Any]
) -> str:
    most = budget.encoder_budget_tokens
    caps = (
        f"{line_of(knob, value, engine_args)}  # makes larger items smaller, to {most:,} tokens"
        for knob in knobs
        if knob.modality == item.shape.modality and (value := knob.value_for_item(most)) is not None
    )
    return "\n".join([*_larger(item.embeds, budget), *caps]) or "make such items smaller"


def _larger(embeds: int, budget: Budget) -> list[str]:
    """A batch that holds an item is of no use where the context does not."""
    return [line("max_num_batched_tokens", embeds)] if embeds < budget.max_model_len else []


def slower(
    knobs: Iterable[Knob], media_io: Mapping[str, Any], share: float
) -> dict[str, Any] | None:
    """`media_io_kwargs` with which the server keeps that share of a video's frames; None where no
    option of the loader does that.
    """
    for knob in knobs:
        fewer = knob.value_for_share(share) if knob.modality == "video" else None
        if fewer is not None:
            return merged(media_io, knob.kwargs(fewer))
    return None


def room(budget: Budget) -> int:
    """Tokens that one item may take: the encoder cache holds it, and the context with some text."""
    context = max(0, budget.max_model_len - TEXT_RESERVE_TOKENS)
    return min(budget.encoder_budget_tokens, context)


def probed(what: str, embeds: int, budget: Budget, media_io: Mapping[str, Any] | None) -> Check:
    """Without a corpus: a video that people do send. `media_io` was tried, and makes it fit."""
    limit, cache = room(budget), budget.encoder_budget_tokens
    held = f"the encoder cache holds {cache:,}"
    if limit < cache:
        held = f"the context of {budget.max_model_len:,} leaves {limit:,}"
    detail = f"{what} takes {embeds:,} tokens as the server samples it, {held}"
    if embeds <= limit:
        return Check(ADMITTED, "pass", detail)
    remedies = _larger(embeds, budget)
    if media_io is not None:
        remedies.append(f"{line('media_io_kwargs', media_io)}  # looks at fewer frames")
    return Check(
        ADMITTED,
        "warn",
        f"{detail}: such a request ends with HTTP 400",
        "\n".join([*remedies, "--data DIR judges by your own media"]),
    )


def budgeted(budget: Budget) -> Check | None:
    """Without a corpus, and without videos: vLLM's own largest items."""
    if not budget.max_tokens_per_item:
        return None
    each = ", ".join(f"{m} {tokens:,}" for m, tokens in budget.max_tokens_per_item.items())
    held = f"the encoder cache holds {budget.encoder_budget_tokens:,}"
    return Check(ADMITTED, "pass", f"vLLM's own largest, in tokens: {each}; {held}")


def _admitted(facts: CheckFacts) -> Iterator[Check]:
    judged, model = facts.configuration, facts.given_model
    knobs = model.knobs if model else ()
    check = admitted(judged.table, judged.budget, knobs, facts.dialect, judged.engine_args)
    if check is not None:
        yield check


def _cap_held(facts: CheckFacts) -> Iterator[Check]:
    """A cap that was asked for and that no value of the model's option reaches."""
    cap, largest = facts.policy.max_tokens_per_item, facts.configuration.table.heaviest("image")
    knobs = [e.point.knob for e in facts.decision.explored]
    names = [k.name for k in knobs if k.modality == "image" and not k.by_loader]
    if cap is not None and names and largest is not None and largest.tokens > cap:
        yield Check(
            CAP_HELD,
            "warn",
            f"--max-tokens-per-item {cap}: the least that {names[0]} allows is "
            f"{largest.tokens} tokens",
            "ask for no less than that",
        )


def _still_accepted(facts: CheckFacts) -> Iterator[Check]:
    """Items that vLLM takes by default and refuses under the chosen setting."""
    default, table = facts.decision.default_table, facts.configuration.table
    gone = [
        mine.take(table.of(mine.modality).shapes.places(mine.shapes) < 0)
        for mine in map(default.of, default.modalities())
    ]
    if items := sum(costs.items() for costs in gone):
        first = next(costs[0] for costs in gone if costs)
        yield Check(
            STILL_ACCEPTED,
            "fail",
            f"{several_are(items, 'item')} refused under the chosen setting, such as "
            f"{first.exemplar}",
            "--max-tokens-per-item larger",
            (first.exemplar,),
        )


# By what lacks: more context takes more KV cache, and so is no cure for a lack of memory.
_ROOM = {
    "context": "a larger --max-model-len, or fewer items in a request (--count)",
    "memory": "a larger --gpu, fewer video frames (media_io_kwargs), fewer items in a request "
    "(--count), or what `mmcalib plan` finds",
}


def _kept_whole(facts: CheckFacts) -> Iterator[Check]:
    """The final setting, measured as a whole, against what was promised knob by knob."""
    decision, policy = facts.decision, facts.policy
    if not policy.keeps_quality:
        return
    if decision.forced:
        kept = decision.retention()
        items = sum(one.items_smaller for one in kept.values())
        total = sum(one.items for one in kept.values())
        parts = "; ".join(one.describe(m) for m, one in kept.items() if one.items_smaller)
        detail = f"{items:,} of {several(total, 'item')} made smaller: {parts}. Otherwise "
        names = (decision.forced,) if decision.forced_by == "context" else ()
        yield Check(KEPT_WHOLE, "warn", detail + decision.forced, _ROOM[decision.forced_by], names)
        return
    before, after = decision.default_table, facts.configuration.table
    smaller = [
        cost for modality in after.modalities() for cost in _smaller(before, after, modality)
    ]
    if smaller:
        tokens = {cost.shape: before.costs[cost.shape].tokens for cost in smaller}
        worst = min(smaller, key=lambda cost: cost.tokens / tokens[cost.shape])
        yield Check(
            KEPT_WHOLE,
            "fail",
            f"{several_are(sum(c.count for c in smaller), 'item')} downscaled, such as "
            f"{worst.exemplar}: "
            f"{worst.tokens} of {tokens[worst.shape]} tokens",
            "--prefer throughput allows it; else report this as a bug of mmcalib",
            (worst.exemplar,),
        )
    elif decision.setting != decision.default_table.setting:
        detail = "under the chosen setting every item costs what it costs by default"
        yield Check(KEPT_WHOLE, "pass", detail)


def _smaller(before: CostTable, after: CostTable, modality: Modality) -> CostColumns:
    """Those that take fewer tokens than before."""
    usual, now = before.of(modality), after.of(modality)
    rows = usual.shapes.places(now.shapes)
    return now.take((rows >= 0) & (now.tokens < usual.tokens[rows]))


def _shrunk(facts: CheckFacts) -> Iterator[Check]:
    """What the model's default makes smaller is not seen whole by it, whatever is calibrated."""
    knobs = (explored.point.knob for explored in facts.decision.explored)
    areas = (knob for knob in knobs if isinstance(knob, AreaCap) and knob.modality == "image")
    cap = next(areas, None)
    if cap is None:
        return
    images = facts.decision.default_table.of("image")
    over = images.take(cap.changed(images.shapes, cap.value))
    if not over:
        detail = f"none has more than the {cap.value:,} pixels that {cap.name} allows"
        yield Check(SHRUNK, "pass", detail)
        return
    largest = over[int(over.shapes.weights().argmax())]
    count = over.items()
    which = "One image is" if count == 1 else f"{count:,} images are"
    pixels = weight(largest.shape) / 1e6
    yield Check(
        SHRUNK,
        "warn",
        f"{which} made smaller by the model's default, {cap.name} of {cap.value:,} pixels, "
        f"such as {largest.exemplar}: {largest.shape}, {pixels:.1f} megapixels",
        "cut such images into parts if their detail matters",
        (largest.exemplar,),
    )


_DECISION = frozenset({Need.DECISION})
RULES = (
    Rule((ADMITTED,), {CheckStage.DECIDED: 50, CheckStage.MEASURED: 50}, _admitted),
    Rule((CAP_HELD,), {CheckStage.DECIDED: 90}, _cap_held, _DECISION),
    Rule((STILL_ACCEPTED,), {CheckStage.DECIDED: 110}, _still_accepted, _DECISION),
    Rule((KEPT_WHOLE,), {CheckStage.DECIDED: 120}, _kept_whole, _DECISION),
    Rule((SHRUNK,), {CheckStage.DECIDED: 125}, _shrunk, _DECISION),
)
