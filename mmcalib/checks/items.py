"""Items and prompts admitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, assert_never

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import Dialect, line, line_of
from mmcalib.checks.facts import CheckFacts, CheckStage, Fullest, Need, Rule
from mmcalib.checks.limits import LIMIT, hint
from mmcalib.derive.costs import CostColumns, CostTable
from mmcalib.derive.demand import Excess, excesses
from mmcalib.derive.fit import Fit
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.limits import Count
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.domain.knobs import AreaCap, Knob, merged_nested
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import Modality, weight
from mmcalib.text import several, several_are

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
            return merged_nested(media_io, knob.kwargs(fewer))
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


def _items_admitted(facts: CheckFacts) -> Iterator[Check]:
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
ITEM_RULES = (
    Rule((ADMITTED,), {CheckStage.DECIDED: 50, CheckStage.MEASURED: 50}, _items_admitted),
    Rule((CAP_HELD,), {CheckStage.DECIDED: 90}, _cap_held, _DECISION),
    Rule((STILL_ACCEPTED,), {CheckStage.DECIDED: 110}, _still_accepted, _DECISION),
    Rule((KEPT_WHOLE,), {CheckStage.DECIDED: 120}, _kept_whole, _DECISION),
    Rule((SHRUNK,), {CheckStage.DECIDED: 125}, _shrunk, _DECISION),
)


REQUESTS_ADMITTED = CheckId("requests admitted")
PROMPTS_FIT = CheckId("prompts fit")


def fullest(
    served: Mapping[Modality, Count],
    engine_args: Mapping[str, Any],
    largest: Mapping[Modality, int],
) -> dict[Modality, tuple[int, int]]:
    """Per modality that the limits name: how many items a prompt may carry, and the tokens of the
    `largest` of them.
    """
    limits = engine_args.get(LIMIT) or {}
    return {
        m: (count.value, largest[m])
        for m, count in served.items()
        if m in limits and count.value and largest.get(m)
    }


def needed(most: Mapping[Modality, tuple[int, int]], reserve_tokens: int) -> int:
    """The context that a prompt of so many items needs, with its text."""
    return sum(count * each for count, each in most.values()) + reserve_tokens


def prompt_fits(
    most: Mapping[Modality, tuple[int, int]],
    engine_args: Mapping[str, Any],
    budget: Budget,
    knobs: tuple[Knob, ...],
    reserve_tokens: int,
    *,
    own: bool,
    longer: bool,
) -> Check | None:
    """Whether a prompt of as many of the largest items as the limits name fits the context; None
    where they name none. `own`: the items are the user's, each of which is served at least on its
    own; `longer`: the model takes a context that holds it.
    """
    if not most:
        return None
    total, room = needed(most, reserve_tokens), budget.max_model_len
    tokens = total - reserve_tokens
    items = ", ".join(f"{count} × {m} of {each:,} tokens" for m, (count, each) in most.items())
    detail = (
        f"a prompt of {items}{', the largest of yours,' if own else ''} takes {tokens:,}, with "
        f"{reserve_tokens:,} for text (assumed) {total:,}; max_model_len {room:,}"
    )
    if total <= room:
        return Check(PROMPTS_FIT, "pass", detail)
    limits = engine_args.get(LIMIT) or {}
    modality = max(most, key=lambda m: most[m][0] * most[m][1])
    count, each = most[modality]
    left = room - reserve_tokens - (tokens - count * each)
    remedies = [line("max_model_len", total)] if longer else []
    if left >= each:
        remedies.append(line(LIMIT, {**limits, modality: _counted(limits, modality, left // each)}))
    share = left // count
    for knob in knobs:
        value = knob.value_for_item(share) if knob.modality == modality and share > 0 else None
        if value is not None:
            capped = line_of(knob, value, engine_args)
            remedies.append(f"{capped}  # makes larger {modality}s smaller, to {share:,} tokens")
            break
    remedies.append(
        "--requests FILE judges by your own" if own else "--data DIR judges by your own media"
    )
    alone = own and max(each for _, each in most.values()) + reserve_tokens > room
    return Check(
        PROMPTS_FIT,
        "fail" if alone else "warn",
        f"{detail}: vLLM rejects such a prompt",
        "\n".join(remedies),
    )


def fits(
    longest: Fit | None,
    *,
    longer: bool,
    dialect: Dialect = Dialect.LINES,
    fewer: str = "fewer or smaller items: the model has no longer context",
) -> Check | None:
    """R5, on the corpus' own prompts; `longer`: the model takes a context that holds them. `fewer`
    says what else helps.
    """
    if longest is None:
        return None
    room = dialect.number(longest.max_model_len)
    of = dialect.say(flags=f"{room} tokens", lines=room)
    detail = f"{longest.longest.origin}: {longest.parts}, of {of}"
    names = (longest.longest.origin,)
    if longest.whole and not longest.unknown:
        return Check(PROMPTS_FIT, "pass", detail, names=names)
    context = dialect.setting("max_model_len", longest.needed_tokens)
    remedy = dialect.say(flags=f"{context}, or {fewer}", lines=context if longer else fewer)
    status: Literal["fail", "warn"] = "warn" if longest.passes else "fail"
    return Check(PROMPTS_FIT, status, f"{longest.trouble}; {detail}", remedy, names)


def _counted(limits: Mapping[str, Any], modality: str, count: int) -> Any:
    kept = hint(limits, modality)
    return {"count": count, **kept} if kept else count


def _fit(facts: CheckFacts) -> Iterator[Check]:
    match facts.prompt:
        case None:
            check = None
        case Fullest(most=most, own=own):
            check = prompt_fits(
                most,
                facts.configuration.engine_args,
                facts.configuration.budget,
                facts.model.knobs,
                facts.policy.text_reserve_tokens,
                own=own,
                longer=facts.longer,
            )
        case Fit() as longest if facts.dialect is Dialect.LINES:
            check = fits(longest, longer=facts.longer)
        case Fit() as longest:
            # Without a cap that the user gave, every smaller size was tried.
            fewer = "fewer or shorter items in such requests"
            if facts.policy.max_tokens_per_item is not None and facts.decision.turns():
                fewer = "a smaller --max-tokens-per-item"
            check = fits(longest, longer=facts.longer, dialect=facts.dialect, fewer=fewer)
        case _:
            assert_never(facts.prompt)
    if check is not None:
        yield check


def _prompts_admitted(facts: CheckFacts) -> Iterator[Check]:
    """Requests with more items than the limits admit end with HTTP 400."""
    over, dialect = facts.corpus.over, facts.dialect
    if over is None:
        return
    limits = facts.configuration.engine_args.get(LIMIT) or {}
    more = {m: n for m, n in over.most.items() if n > facts.configuration.items_per_prompt[m]}
    status: Literal["fail", "warn"] = dialect.say(flags="warn", lines="fail")
    yield Check(
        REQUESTS_ADMITTED,
        status,
        f"{dialect.number(over.requests)} of {dialect.number(over.of)} requests carry more items "
        f"than the limits admit, such as {over.first}: vLLM "
        f"{dialect.say(flags='will reject', lines='rejects')} them",
        dialect.say(
            flags="--coverage 1, --count more, or split them", lines=line(LIMIT, {**limits, **more})
        ),
        (over.first,),
    )


PROMPT_RULES = (
    Rule(
        (REQUESTS_ADMITTED,),
        {CheckStage.DECIDED: 60, CheckStage.MEASURED: 70},
        _prompts_admitted,
        frozenset({Need.CORPUS}),
    ),
    Rule(
        (PROMPTS_FIT,),
        {CheckStage.DECIDED: 70, CheckStage.WRITTEN: 30, CheckStage.MEASURED: 80},
        _fit,
    ),
)


INPUT_RESERVED = CheckId("{} input reserved")


def excess_check(excess: Excess, dialect: Dialect) -> Check:
    """A warning, not a failure: memory follows the encoder's input, but not that alone; the bytes
    are a rehearsal's to say.
    """
    seqs = excess.max_num_seqs
    fewer = dialect.say(flags=f"-- --max-num-seqs {seqs}", lines=f"max-num-seqs: {seqs}")
    cost, items = excess.cost, f"{excess.items:,} items" if excess.items > 1 else "an item"
    lower = "a lower gpu_memory_utilization leaves room without reserving it"
    return Check(
        INPUT_RESERVED.of(excess.modality),
        "warn",
        f"one step may encode {items} such as {cost.exemplar}, of {cost.embeds:,} tokens: "
        f"{excess.times:.1f} times the encoder input that vLLM profiles. It bounds a step by "
        "tokens, and the processor pads or tiles such items to more for each token; the engine "
        "may run out of memory under load, and how many bytes it takes is not known here: --gpu "
        "rehearses such a step",
        f"{fewer}, or {lower}" if excess.max_num_seqs else lower,
        (cost.exemplar,),
    )


def _input_reserved(facts: CheckFacts) -> Iterator[Check]:
    """What R4 in tokens cannot see."""
    judged = facts.configuration
    for excess in excesses(judged.table, judged.budget, judged.plain, judged.items_per_prompt):
        yield excess_check(excess, facts.dialect)


ENCODER_INPUT_RULES = (
    Rule((INPUT_RESERVED,), {CheckStage.DECIDED: 170, CheckStage.MEASURED: 60}, _input_reserved),
)
