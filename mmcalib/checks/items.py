"""Items and prompts admitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from mmcalib.checks.catalogue import (
    ADMITTED,
    DETAIL_KEPT,
    INPUT_MEMORY,
    MODEL_SIZE_LIMIT,
    NEWLY_REJECTED,
    PROMPT_LENGTH,
    REQUESTS_ADMITTED,
    SMALLEST_CAP,
)
from mmcalib.checks.check import Check, Dialect, line, line_of
from mmcalib.checks.facts import CheckFacts, CheckStage, Fullest, Rules
from mmcalib.checks.limits import LIMIT, hint
from mmcalib.derive.costs import CostColumns, CostTable, ItemCost
from mmcalib.derive.demand import Excess, excesses
from mmcalib.derive.fit import Fit
from mmcalib.derive.limits import Count
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.domain.knobs import AreaCap, Knob, merged_nested
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import Modality, weight
from mmcalib.text import several, several_are


def check_items_admitted(facts: CheckFacts) -> Iterator[Check]:
    """The encoder cache must hold each item whole, or its request ends with HTTP 400."""
    judged, dialect = facts.configuration, facts.dialect
    largest, limit = judged.table.largest(), judged.budget.encoder_budget_tokens
    if largest is None:
        return
    number, names = dialect.number, (largest.exemplar,)
    tables = map(judged.table.of, judged.table.modalities())
    over = sum(int(costs.counts[costs.embeds > limit].sum()) for costs in tables)
    if not over:
        detail = f"largest item {number(largest.embeds)} tokens, encoder cache {number(limit)}"
        yield Check(ADMITTED, "pass", f"{detail}: {largest.exemplar}", names=names)
        return
    ends, remedy = "", f"{dialect.setting('max_num_batched_tokens', largest.embeds)} or more"
    if dialect is Dialect.LINES:
        ends, remedy = " and end with HTTP 400", _room(largest, facts)
    yield Check(
        ADMITTED,
        "fail",
        f"{number(over)} items exceed the encoder cache of "
        f"{number(limit)} tokens{ends}; {largest.exemplar} takes {number(largest.embeds)}",
        remedy,
        names,
    )


def _room(item: ItemCost, facts: CheckFacts) -> str:
    """Lines with which the encoder cache holds such an item, or it is made smaller."""
    judged, knobs = facts.configuration, facts.given_model.knobs if facts.given_model else ()
    most, modality = judged.budget.encoder_budget_tokens, item.shape.modality
    caps = [
        f"{line_of(knob, value, judged.engine_args)}  # makes larger items smaller, to {most:,} "
        "tokens"
        for knob in knobs
        if knob.modality == modality and (value := knob.value_for_item(most)) is not None
    ]
    return "\n".join([*_larger(item.embeds, judged.budget), *caps]) or "make such items smaller"


def _larger(embeds: int, budget: Budget) -> list[str]:
    """A batch that holds an item is of no use where the context does not."""
    return [line("max_num_batched_tokens", embeds)] if embeds < budget.max_model_len else []


def slower(
    knobs: Iterable[Knob], media_io: Mapping[str, Any], share: float
) -> dict[str, Any] | None:
    """`media_io_kwargs` that keep that share of a video's frames; None where no option does."""
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
    remedy = "\n".join([*remedies, "--data DIR judges by your own media"])
    return Check(ADMITTED, "warn", f"{detail}: such a request ends with HTTP 400", remedy)


def budgeted(budget: Budget) -> Check | None:
    """Without a corpus, and without videos: vLLM's own largest items."""
    if not budget.max_tokens_per_item:
        return None
    each = ", ".join(f"{m} {tokens:,}" for m, tokens in budget.max_tokens_per_item.items())
    held = f"the encoder cache holds {budget.encoder_budget_tokens:,}"
    return Check(ADMITTED, "pass", f"vLLM's own largest, in tokens: {each}; {held}")


def check_cap(facts: CheckFacts) -> Iterator[Check]:
    """A cap that was asked for and that no value of the model's option reaches."""
    cap, largest = facts.policy.max_tokens_per_item, facts.configuration.table.heaviest("image")
    knobs = [e.point.knob for e in facts.decision.explored]
    names = [k.name for k in knobs if k.modality == "image" and not k.by_loader]
    if cap is not None and names and largest is not None and largest.tokens > cap:
        least = f"the least that {names[0]} allows is {largest.tokens} tokens"
        detail = f"--max-tokens-per-item {cap}: {least}"
        yield Check(SMALLEST_CAP, "warn", detail, "ask for no less than that")


def check_still_accepted(facts: CheckFacts) -> Iterator[Check]:
    """Items that vLLM takes by default and refuses under the chosen setting."""
    default, table = facts.decision.default_table, facts.configuration.table
    gone = [
        mine.take(table.of(mine.modality).shapes.places(mine.shapes) < 0)
        for mine in map(default.of, default.modalities())
    ]
    if items := sum(costs.items() for costs in gone):
        first = next(costs[0] for costs in gone if costs)
        yield Check(
            NEWLY_REJECTED,
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


def check_kept_whole(facts: CheckFacts) -> Iterator[Check]:
    """The final setting, measured as a whole, against what was promised knob by knob."""
    decision, policy = facts.decision, facts.policy
    if not policy.keeps_quality:
        return
    if decision.forced:
        kept = decision.retention()
        items = sum(one.items_smaller for one in kept.values())
        total = sum(decision.default_table.of(m).items() for m in kept)
        parts = "; ".join(one.describe(m) for m, one in kept.items() if one.items_smaller)
        detail = f"{items:,} of {several(total, 'item')} made smaller: {parts}. Otherwise "
        names = (decision.forced,) if decision.forced_by == "context" else ()
        yield Check(DETAIL_KEPT, "warn", detail + decision.forced, _ROOM[decision.forced_by], names)
        return
    before, after = decision.default_table, facts.configuration.table
    smaller = [cost for m in after.modalities() for cost in _smaller(before, after, m)]
    if smaller:
        tokens = {cost.shape: before.costs[cost.shape].tokens for cost in smaller}
        worst = min(smaller, key=lambda cost: cost.tokens / tokens[cost.shape])
        yield Check(
            DETAIL_KEPT,
            "fail",
            f"{several_are(sum(c.count for c in smaller), 'item')} downscaled, such as "
            f"{worst.exemplar}: "
            f"{worst.tokens} of {tokens[worst.shape]} tokens",
            "--prefer throughput allows it; else report this as a bug of mmcalib",
            (worst.exemplar,),
        )
    elif decision.setting != decision.default_table.setting:
        detail = "under the chosen setting every item costs what it costs by default"
        yield Check(DETAIL_KEPT, "pass", detail)


def _smaller(before: CostTable, after: CostTable, modality: Modality) -> CostColumns:
    usual, now = before.of(modality), after.of(modality)
    rows = usual.shapes.places(now.shapes)
    return now.take((rows >= 0) & (now.tokens < usual.tokens[rows]))


def check_shrunk(facts: CheckFacts) -> Iterator[Check]:
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
        yield Check(MODEL_SIZE_LIMIT, "pass", detail)
        return
    largest = over[int(over.shapes.weights().argmax())]
    count = over.items()
    which = "One image is" if count == 1 else f"{count:,} images are"
    pixels = weight(largest.shape) / 1e6
    yield Check(
        MODEL_SIZE_LIMIT,
        "warn",
        f"{which} made smaller by the model's default, {cap.name} of {cap.value:,} pixels, "
        f"such as {largest.exemplar}: {largest.shape}, {pixels:.1f} megapixels",
        "cut such images into parts if their detail matters",
        (largest.exemplar,),
    )


def fullest(
    served: Mapping[Modality, Count],
    engine_args: Mapping[str, Any],
    largest: Mapping[Modality, int],
) -> dict[Modality, tuple[int, int]]:
    """Per limited modality the items of one prompt, and the tokens of the `largest`."""
    limits = engine_args.get(LIMIT) or {}
    return {
        m: (count.value, largest[m])
        for m, count in served.items()
        if m in limits and count.value and largest.get(m)
    }


def needed(most: Mapping[Modality, tuple[int, int]], reserve_tokens: int) -> int:
    """The context that a prompt of so many items needs, with its text."""
    return sum(count * each for count, each in most.values()) + reserve_tokens


def _fullest_fits(prompt: Fullest, facts: CheckFacts) -> Check:
    """Whether as many largest items as limits name fit; of the user's own, each alone at least."""
    most, own, reserve_tokens = prompt.most, prompt.own, facts.policy.text_reserve_tokens
    engine_args, room = facts.configuration.engine_args, facts.configuration.budget.max_model_len
    total = needed(most, reserve_tokens)
    tokens = total - reserve_tokens
    items = ", ".join(f"{count} × {m} of {each:,} tokens" for m, (count, each) in most.items())
    detail = (
        f"a prompt of {items}{', the largest of yours,' if own else ''} takes {tokens:,}, with "
        f"{reserve_tokens:,} for text (assumed) {total:,}; max_model_len {room:,}"
    )
    if total <= room:
        return Check(PROMPT_LENGTH, "pass", detail)
    limits = engine_args.get(LIMIT) or {}
    modality = max(most, key=lambda m: most[m][0] * most[m][1])
    count, each = most[modality]
    left = room - reserve_tokens - (tokens - count * each)
    remedies = [line("max_model_len", total)] if facts.longer else []
    if left >= each:
        fewer, kept = left // each, hint(limits, modality)
        limit = {"count": fewer, **kept} if kept else fewer
        remedies.append(line(LIMIT, {**limits, modality: limit}))
    share = left // count
    for knob in facts.model.knobs:
        value = knob.value_for_item(share) if knob.modality == modality and share > 0 else None
        if value is not None:
            capped = line_of(knob, value, engine_args)
            remedies.append(f"{capped}  # makes larger {modality}s smaller, to {share:,} tokens")
            break
    remedies.append(
        "--requests FILE judges by your own" if own else "--data DIR judges by your own media"
    )
    alone = own and max(each for _, each in most.values()) + reserve_tokens > room
    status: Literal["fail", "warn"] = "fail" if alone else "warn"
    rejects = f"{detail}: vLLM rejects such a prompt"
    return Check(PROMPT_LENGTH, status, rejects, "\n".join(remedies))


def _longest_fits(longest: Fit, facts: CheckFacts) -> Check:
    dialect = facts.dialect
    room = dialect.number(longest.max_model_len)
    of = dialect.say(flags=f"{room} tokens", lines=room)
    detail = f"{longest.longest.origin}: {longest.parts}, of {of}"
    names = (longest.longest.origin,)
    if longest.whole and not longest.unknown:
        return Check(PROMPT_LENGTH, "pass", detail, names=names)
    remedy = context = dialect.setting("max_model_len", longest.needed_tokens)
    if dialect is Dialect.FLAGS:
        # Without a cap that the user gave, every smaller size was tried.
        fewer = "fewer or shorter items in such requests"
        if facts.policy.max_tokens_per_item is not None and facts.decision.turns():
            fewer = "a smaller --max-tokens-per-item"
        remedy = f"{context}, or {fewer}"
    elif not facts.longer:
        remedy = "fewer or smaller items: the model has no longer context"
    status: Literal["fail", "warn"] = "warn" if longest.passes else "fail"
    return Check(PROMPT_LENGTH, status, f"{longest.trouble}; {detail}", remedy, names)


def check_prompts_fit(facts: CheckFacts) -> Iterator[Check]:
    if isinstance(facts.prompt, Fit):
        yield _longest_fits(facts.prompt, facts)
    elif facts.prompt is not None and facts.prompt.most:
        yield _fullest_fits(facts.prompt, facts)


def check_requests_admitted(facts: CheckFacts) -> Iterator[Check]:
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


def excess_check(excess: Excess, dialect: Dialect) -> Check:
    """A warning, not a failure: only a rehearsal knows the bytes."""
    seqs = excess.max_num_seqs
    fewer = dialect.say(flags=f"-- --max-num-seqs {seqs}", lines=f"max-num-seqs: {seqs}")
    cost, items = excess.cost, f"{excess.items:,} items" if excess.items > 1 else "an item"
    lower = "a lower gpu_memory_utilization leaves room without reserving it"
    return Check(
        INPUT_MEMORY.of(excess.modality),
        "warn",
        f"one step may encode {items} such as {cost.exemplar}, of {cost.embeds:,} tokens: "
        f"{excess.times:.1f} times the encoder input that vLLM profiles. It bounds a step by "
        "tokens, and the processor pads or tiles such items to more for each token; the engine "
        "may run out of memory under load, and how many bytes it takes is not known here: --gpu "
        "rehearses such a step",
        f"{fewer}, or {lower}" if excess.max_num_seqs else lower,
        (cost.exemplar,),
    )


def check_input_reserved(facts: CheckFacts) -> Iterator[Check]:
    """What R4 in tokens cannot see."""
    judged = facts.configuration
    for excess in excesses(judged.table, judged.budget, judged.plain, judged.items_per_prompt):
        yield excess_check(excess, facts.dialect)


RULES: Final[Rules] = {
    check_items_admitted: {CheckStage.DECIDED: 60, CheckStage.MEASURED: 60},
    check_cap: {CheckStage.DECIDED: 120},
    check_still_accepted: {CheckStage.DECIDED: 150},
    check_kept_whole: {CheckStage.DECIDED: 160},
    check_shrunk: {CheckStage.DECIDED: 170},
    check_prompts_fit: {CheckStage.DECIDED: 90, CheckStage.WRITTEN: 40, CheckStage.MEASURED: 90},
    check_requests_admitted: {CheckStage.DECIDED: 80, CheckStage.MEASURED: 80},
    check_input_reserved: {CheckStage.DECIDED: 220, CheckStage.MEASURED: 70},
}
