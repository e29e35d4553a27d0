"""Checks of items and prompts: does vLLM admit them, and how much detail is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import Any

from mmcalib.checks import catalogue as ids
from mmcalib.checks.catalogue import CheckId
from mmcalib.checks.check import Check, RemedyStyle, Status, yaml_line
from mmcalib.checks.facts import CheckFacts, Decision, LargestPrompt
from mmcalib.domain.knobs import FrameSampling, Knob, merge_nested
from mmcalib.domain.memory import Budget, RehearsedMemory
from mmcalib.domain.shapes import Modality, weight
from mmcalib.gate.fit import Fit
from mmcalib.limits.costs import CostColumns, CostTable, ItemCost
from mmcalib.limits.demand import Excess, find_excesses
from mmcalib.limits.frontier import Point, most_detailed
from mmcalib.limits.policy import TEXT_RESERVE_TOKENS
from mmcalib.limits.values import LIMIT, Count, resident_items, size_hint
from mmcalib.releases.constants import MIN_ANSWER_TOKENS
from mmcalib.text import number, plural


def check_items_admitted(facts: CheckFacts) -> Iterator[Check]:
    """Check that the encoder cache holds each item whole; else vLLM answers HTTP 400."""
    judged, dialect = facts.configuration, facts.dialect
    largest, limit = judged.table.largest(), judged.budget.encoder_budget_tokens
    if largest is None:
        return
    number, names = dialect.number, (largest.exemplar,)
    tables = map(judged.table.columns_of, judged.table.modalities())
    over = sum(int(costs.counts[costs.embeds > limit].sum()) for costs in tables)
    if not over:
        detail = f"largest item {number(largest.embeds)} tokens, encoder cache {number(limit)}"
        yield Check(ids.ADMITTED, "pass", f"{detail}: {largest.exemplar}", names=names)
        return
    ends, remedy = "", f"{dialect.setting('max_num_batched_tokens', largest.embeds)} or more"
    if dialect is RemedyStyle.LINES:
        ends, remedy = ", so vLLM rejects them (HTTP 400)", _room(largest, facts)
    detail = f"{number(over)} items exceed the encoder cache of {number(limit)} tokens{ends}; "
    detail += f"{largest.exemplar} takes {number(largest.embeds)}"
    yield Check(ids.ADMITTED, "fail", detail, remedy, names)


def _room(item: ItemCost, facts: CheckFacts) -> str:
    """Lines that enlarge the encoder cache to hold such an item, or that shrink the item."""
    budget, most = facts.configuration.budget, facts.configuration.budget.encoder_budget_tokens
    caps = _caps(item.shape.modality, most, "item", facts)
    return "\n".join([*_larger(item.embeds, budget), *caps]) or "make such items smaller"


def _caps(modality: Modality, tokens: int, items: str, facts: CheckFacts) -> Iterator[str]:
    """Lines that shrink images to at most so many tokens; a video's are of all its frames."""
    for knob in facts.model.knobs:
        wanted = knob.modality == modality == "image" and tokens > 0
        value = knob.value_for_tokens(tokens) if wanted else None
        if value is not None:
            own = facts.configuration.engine_args.get(knob.argument)
            line = yaml_line(knob.argument, merge_nested(own, knob.kwargs(value)))
            yield f"{line}  # shrinks larger {items}s to {tokens:,} tokens"


def _larger(embeds: int, budget: Budget) -> list[str]:
    """A batch that holds the item, if the context does too."""
    return [yaml_line("max_num_batched_tokens", embeds)] if embeds < budget.max_model_len else []


def with_fewer_frames(
    knobs: Iterable[Knob], media_io: Mapping[str, Any], share: float
) -> dict[str, Any] | None:
    """`media_io_kwargs` that keep this share of a video's frames; None without such an option."""
    for knob in knobs:
        fewer = knob.value_for_share(share) if isinstance(knob, FrameSampling) else None
        if fewer is not None:
            return merge_nested(media_io, knob.kwargs(fewer))
    return None


def room(budget: Budget) -> int:
    """Most tokens of one item that the encoder cache holds, and the context with some text."""
    return min(budget.encoder_budget_tokens, max(0, budget.max_model_len - TEXT_RESERVE_TOKENS))


def common_video_check(embeds: int, budget: Budget, media_io: Mapping[str, Any] | None) -> Check:
    """Check a minute of 720p video in place of data. `media_io` was tried and makes it fit."""
    limit, cache = room(budget), budget.encoder_budget_tokens
    held = f"the encoder cache holds {cache:,}"
    if limit < cache:
        held = f"the context of {budget.max_model_len:,} leaves {limit:,}"
    detail = f"a minute of 720p video takes {embeds:,} tokens as the server samples it; {held}"
    if embeds <= limit:
        return Check(ids.ADMITTED, "pass", detail)
    remedies = _larger(embeds, budget)
    if media_io is not None:
        remedies.append(f"{yaml_line('media_io_kwargs', media_io)}  # samples fewer frames")
    remedy = "\n".join([*remedies, "--data DIR checks your own media"])
    return Check(ids.ADMITTED, "warn", f"{detail}. vLLM rejects such a request (HTTP 400)", remedy)


def own_largest_check(budget: Budget) -> Check | None:
    """Check vLLM's own largest items, without data and videos."""
    if not budget.max_tokens_per_item:
        return None
    each = ", ".join(f"{m} {tokens:,}" for m, tokens in budget.max_tokens_per_item.items())
    held = f"the encoder cache holds {budget.encoder_budget_tokens:,}"
    return Check(ids.ADMITTED, "pass", f"vLLM's own largest items in tokens: {each}; {held}")


def check_cap(facts: CheckFacts) -> Iterator[Check]:
    """Warn if no value of the model's option reaches --max-tokens-per-item."""
    cap, largest = facts.policy.max_tokens_per_item, facts.configuration.table.heaviest("image")
    knobs = [e.point.knob for e in facts.decision.explored]
    names = [k.name for k in knobs if k.modality == "image" and not k.is_loader_option]
    if cap is not None and names and largest is not None and largest.tokens > cap:
        detail = f"--max-tokens-per-item {cap}: {names[0]} allows {largest.tokens} tokens or more"
        yield Check(ids.SMALLEST_CAP, "warn", detail, f"--max-tokens-per-item {largest.tokens}")


def check_still_accepted(facts: CheckFacts) -> Iterator[Check]:
    """Fail if the tuned settings reject items that vLLM accepts by default."""
    default, table = facts.decision.default_table, facts.configuration.table
    gone = [
        mine.take(table.columns_of(mine.modality).shapes.positions(mine.shapes) < 0)
        for mine in map(default.columns_of, default.modalities())
    ]
    if items := sum(costs.item_count() for costs in gone):
        first = next(costs[0] for costs in gone if costs)
        detail = f"the tuned settings reject {plural(items, 'item')}, such as {first.exemplar}"
        remedy = "a larger --max-tokens-per-item"
        yield Check(ids.NEWLY_REJECTED, "fail", detail, remedy, (first.exemplar,))


# By what was too small. More context takes more KV cache, so it does not help memory.
_ROOM = {
    "context": "a larger --max-model-len, or fewer items in a request (--count)",
    "memory": "a larger --gpu, fewer video frames (media_io_kwargs), fewer items in a request "
    "(--count), or mmcalib plan",
}


def check_kept_whole(facts: CheckFacts) -> Iterator[Check]:
    """Measure the final setting as a whole, which was chosen knob by knob."""
    decision, policy = facts.decision, facts.policy
    if not policy.keeps_quality:
        return
    kept = decision.retention()
    if decision.forced and any(one.items_smaller for one in kept.values()):
        items = sum(one.items_smaller for one in kept.values())
        total = sum(decision.default_table.columns_of(m).item_count() for m in kept)
        parts = "; ".join(one.describe(m) for m, one in kept.items() if one.items_smaller)
        detail = f"{items:,} of {plural(total, 'item')} are downscaled: {parts}. Otherwise "
        names = (decision.forced,) if decision.forced_by == "context" else ()
        remedy = decision.unforced or _ROOM[decision.forced_by]
        yield Check(ids.DETAIL_KEPT, "warn", detail + decision.forced, remedy, names)
        return
    before, after = decision.default_table, facts.configuration.table
    smaller = [cost for m in after.modalities() for cost in _smaller(before, after, m)]
    if smaller:
        tokens = {cost.shape: before.costs[cost.shape].tokens for cost in smaller}
        worst = min(smaller, key=lambda cost: cost.tokens / tokens[cost.shape])
        count = sum(cost.count for cost in smaller)
        detail = f"{plural(count, 'item')} {'is' if count == 1 else 'are'} downscaled, such as "
        detail += f"{worst.exemplar}: {worst.tokens} of {tokens[worst.shape]} tokens"
        remedy = "--prefer throughput allows it; otherwise report a bug"
        yield Check(ids.DETAIL_KEPT, "fail", detail, remedy, (worst.exemplar,))
    elif decision.setting != decision.default_table.setting:
        more = "at least " if decision.raises_detail else ""
        detail = f"every item takes {more}as many tokens as by default"
        yield Check(ids.DETAIL_KEPT, "pass", detail)


def _smaller(before: CostTable, after: CostTable, modality: Modality) -> CostColumns:
    usual, now = before.columns_of(modality), after.columns_of(modality)
    rows = usual.shapes.positions(now.shapes)
    return now.take((rows >= 0) & (now.tokens < usual.tokens[rows]))


def check_shrunk(facts: CheckFacts) -> Iterator[Check]:
    """Count the items that the model's default shrinks, or that --prefer detail still does."""
    known = set[Modality]()
    for now, points in _own_limits(facts.decision):
        for check in _shrunk_check(now, most_detailed(points), facts):
            known.add(now.knob.modality)
            yield check
    for modality, smaller in facts.tries.same_cost.items():
        if modality in known:
            continue
        largest = largest_item(facts.decision.most_detailed_table.columns_of(modality))
        detail = f"the largest {modality}, {largest.exemplar}: {largest.shape}, takes "
        detail += f"{plural(largest.tokens, 'token')}, as many as one of {smaller}"
        yield Check(ids.MODEL_SIZE_LIMIT, "warn", detail, _PARTS[modality], (largest.exemplar,))


def _own_limits(decision: Decision) -> Iterator[tuple[Point, list[Point]]]:
    """Yield each option's default, or the chosen value above it, with all its values."""
    chosen = {point.knob.name: point for point in decision.chosen}
    rows = groupby((e.point for e in decision.explored), key=lambda point: point.knob)
    for knob, (*points,) in rows:
        default = next(point for point in points if point.value == knob.value)
        yield max(default, chosen.get(knob.name, default), key=lambda point: point.value), points


def least_kept(decision: Decision) -> dict[Modality, float]:
    """Return the least share of its pixels that an item keeps, if the rule of an option tells."""
    least: dict[Modality, float] = {}
    for now, _ in _own_limits(decision):
        items = decision.most_detailed_table.columns_of(modality := now.knob.modality)
        kept = now.knob.kept_pixels(items, now.value)
        if kept is not None and len(kept):
            least[modality] = min(least.get(modality, 1.0), float(kept.min()))
    return least


# What shows a model more of an item that it makes smaller.
_PARTS: Mapping[Modality, str] = {
    "image": "cut such images up if detail matters",
    "video": "crop such videos if detail matters",
    "audio": "split such recordings if all of it matters",
}


def largest_item(items: CostColumns) -> ItemCost:
    """Return the one with most pixels or samples."""
    return items[int(items.shapes.weights().argmax())]


def _shrunk_check(now: Point, better: Point | None, facts: CheckFacts) -> Iterator[Check]:
    """Judge what this value shrinks; `better` is what --prefer detail chooses if it fits."""
    decision, knob = facts.decision, now.knob
    table = decision.table if now.is_beyond_default else decision.default_table
    items = table.columns_of(knob.modality)
    kept = knob.kept_pixels(items, now.value)
    # No rule tells which videos shrink, only what they gain above the default.
    clips = better is not None and knob.modality == "video" and not now.is_beyond_default
    if kept is None and not clips:
        return
    usual = "" if now.is_beyond_default else "the model's default "
    limit = f"{usual}{knob.name} {number(now.value)}"
    over = items if kept is None else items.take(kept < 1)
    if not over:
        yield Check(ids.MODEL_SIZE_LIMIT, "pass", f"no image shrinks to {limit}")
        return
    largest = largest_item(over)
    count = better.items_gaining if kept is None and better else over.item_count()
    verb = "shrinks" if count == 1 else "shrink"
    detail = f"{count:,} of {plural(items.item_count(), knob.modality)} {verb} to {limit}, such as "
    detail += f"{largest.exemplar}: {largest.shape}"
    if knob.modality == "image":
        detail += f", {weight(largest.shape) / 1e6:.1f} megapixels"
    remedy = _PARTS[knob.modality]
    if facts.policy.raises_detail and decision.forced:
        detail, remedy = f"{detail}. Otherwise {decision.forced}", _ROOM[decision.forced_by]
    elif better and better.value > now.value and facts.policy.keeps_quality and not decision.forced:
        left = f", which still shrinks {better.items_shrunk:,}" if better.items_shrunk else ""
        times = f"{better.mean_enlargement:.1f} times as many tokens on average"
        largest_tokens = f"{better.max_tokens:,} at most"
        remedy = f"--prefer detail sets {number(better.value)}{left}: {times}, {largest_tokens}"
    yield Check(ids.MODEL_SIZE_LIMIT, "warn", detail, remedy, (largest.exemplar,))


def largest_prompt(
    served: Mapping[Modality, Count],
    engine_args: Mapping[str, Any],
    largest: Mapping[Modality, int],
) -> dict[Modality, tuple[int, int]]:
    """Per limited modality: items of one prompt, and tokens of the largest item."""
    limits = engine_args.get(LIMIT) or {}
    return {
        m: (count.value, largest[m])
        for m, count in served.items()
        if m in limits and count.value and largest.get(m)
    }


def needed_context(most: Mapping[Modality, tuple[int, int]], reserve_tokens: int) -> int:
    """The context that such a prompt needs, with its text."""
    return sum(count * each for count, each in most.values()) + reserve_tokens


def _fullest_fits(prompt: LargestPrompt, facts: CheckFacts) -> Check:
    """Check a prompt full of the largest items; of the user's own, each must fit alone."""
    most, own, reserve_tokens = prompt.most, prompt.own, facts.policy.text_reserve_tokens
    engine_args, room = facts.configuration.engine_args, facts.configuration.budget.max_model_len
    total = needed_context(most, reserve_tokens)
    tokens = total - reserve_tokens
    items = ", ".join(f"{count} × {m} of {each:,} tokens" for m, (count, each) in most.items())
    detail = f"a prompt of {items}{', the largest of yours,' if own else ''} takes {tokens:,}, "
    detail += f"with {reserve_tokens:,} for text (assumed) {total:,}; max_model_len {room:,}"
    if total <= room:
        return Check(ids.PROMPT_LENGTH, "pass", detail)
    limits = engine_args.get(LIMIT) or {}
    modality = max(most, key=lambda m: most[m][0] * most[m][1])
    count, each = most[modality]
    left = room - reserve_tokens - (tokens - count * each)
    remedies = [yaml_line("max_model_len", total)] if facts.longer else []
    if left >= each:
        fewer, kept = left // each, size_hint(limits, modality)
        limit = {"count": fewer, **kept} if kept else fewer
        remedies.append(yaml_line(LIMIT, {**limits, modality: limit}))
    remedies += islice(_caps(modality, left // count, modality, facts), 1)
    remedies.append(
        "--requests FILE checks your requests" if own else "--data DIR checks your own media"
    )
    last = room - MIN_ANSWER_TOKENS
    status: Status = "fail" if own and max(each for _, each in most.values()) > last else "warn"
    detail += ": vLLM rejects such a prompt" if tokens > last else ": its answer is cut short"
    return Check(ids.PROMPT_LENGTH, status, detail, "\n".join(remedies))


def _longest_fits(longest: Fit, facts: CheckFacts) -> Check:
    dialect = facts.dialect
    room = dialect.number(longest.max_model_len)
    of = dialect.choose(flags=f"{room} tokens", lines=room)
    detail = f"{longest.longest.origin}: {longest.description}, of {of}"
    names = (longest.longest.origin,)
    if longest.fits_answers and not longest.unknown:
        return Check(ids.PROMPT_LENGTH, "pass", detail, names=names)
    remedy = context = dialect.setting("max_model_len", longest.needed_tokens)
    if dialect is RemedyStyle.FLAGS:
        # Unless the user gave a cap, every smaller size was tried.
        fewer = "fewer or shorter items in such requests"
        if facts.policy.max_tokens_per_item is not None and facts.decision.shrinkable_modalities():
            fewer = "a smaller --max-tokens-per-item"
        remedy = f"{context}, or {fewer}"
    elif not facts.longer:
        remedy = "fewer or smaller items; this is the model's longest context"
    status: Status = "warn" if longest.passes else "fail"
    return Check(ids.PROMPT_LENGTH, status, f"{longest.problems}; {detail}", remedy, names)


def check_prompts_fit(facts: CheckFacts) -> Iterator[Check]:
    if isinstance(facts.prompt, Fit):
        yield _longest_fits(facts.prompt, facts)
    elif facts.prompt is not None and facts.prompt.most:
        yield _fullest_fits(facts.prompt, facts)


def check_large_items(facts: CheckFacts) -> Iterator[Check]:
    """Check items that block the encoder cache; `items admitted` reports those that never fit."""
    judged, budget = facts.configuration, facts.configuration.budget
    size = budget.encoder_cache_size
    modalities = {modality for modality, most in judged.items_per_prompt.items() if most}
    every = resident_items(judged.table, budget)
    large = [r for r in every if r.items and r.modality in modalities]
    blocking = [r for r in large if r.delays_others]
    if blocking and budget.max_num_seqs > 1:
        worst = max(blocking, key=lambda r: r.steps)
        item, batched = worst.item, budget.max_num_batched_tokens
        detail = f"{worst.over_half} {worst.modality} items each take over half of the encoder "
        detail += f"cache ({size:,} tokens): {item.exemplar} occupies it for at least "
        detail += f"{worst.steps} steps of {batched} tokens; the next large {worst.modality} waits"
        double = f"--max-num-batched-tokens {2 * item.embeds}"
        remedy = f"{double} makes room for two and takes GPU memory"
        if worst.modality in facts.decision.shrinkable_modalities():
            remedy += "; --max-tokens-per-item makes them smaller"
        yield Check(ids.LARGE_ITEMS, "warn", detail, remedy, (item.exemplar,))
    elif large:
        each = (f"{number(r.items)} × {r.modality} of {r.item.embeds} tokens" for r in large)
        detail = f"the encoder cache, {size} tokens, holds {' or '.join(each)}"
        yield Check(ids.LARGE_ITEMS, "pass", detail)


def check_requests_admitted(facts: CheckFacts) -> Iterator[Check]:
    """Check that no request has more items than the limits admit; else vLLM answers HTTP 400."""
    over, judged, dialect = facts.corpus.over, facts.configuration, facts.dialect
    if over is None:
        return
    status: Status = "warn"
    rejects, remedy = "will reject", "--coverage 1, a larger --count, or split the requests"
    if dialect is RemedyStyle.LINES:
        limits = dict(judged.engine_args.get(LIMIT) or {})
        more = {m: n for m, n in over.most.items() if n > judged.items_per_prompt[m]}
        status, rejects, remedy = "fail", "rejects", yaml_line(LIMIT, limits | more)
    detail = f"{dialect.number(over.requests)} of {dialect.number(over.of)} requests carry more "
    detail += f"items than the limits admit, such as {over.first}: vLLM {rejects} them"
    yield Check(ids.REQUESTS_ADMITTED, status, detail, remedy, (over.first,))


def excess_check(excess: Excess, dialect: RemedyStyle) -> Check:
    """A warning, not a failure: without a rehearsal the bytes are unknown."""
    seqs = excess.max_num_seqs
    fewer = dialect.choose(flags=f"-- --max-num-seqs {seqs}", lines=f"max-num-seqs: {seqs}")
    cost, items = excess.cost, f"{excess.items:,} items" if excess.items > 1 else "an item"
    lower = "a lower gpu_memory_utilization leaves room without reserving it"
    detail = f"one step may encode {items} such as {cost.exemplar}, of {cost.embeds:,} tokens: "
    detail += f"{excess.times:.1f} times the encoder input that vLLM profiles, because the "
    detail += "processor pads or tiles them. The engine may run out of memory under load; --gpu "
    detail += "NAME rehearses the step"
    remedy = f"{fewer}, or {lower}" if excess.max_num_seqs else lower
    return Check(ids.INPUT_MEMORY.of(excess.modality), "warn", detail, remedy, (cost.exemplar,))


def check_input_reserved(facts: CheckFacts) -> Iterator[Check]:
    """Warn about padded or tiled input, which the reserve in tokens does not cover."""
    judged = facts.configuration
    for excess in find_excesses(judged.table, judged.budget, judged.plain, judged.items_per_prompt):
        yield excess_check(excess, facts.dialect)


def rehearsed_inputs(after: RehearsedMemory | None) -> set[CheckId]:
    """The input memory checks that a rehearsal answers in bytes."""
    steps = after.steps if after else ()
    return {
        ids.INPUT_MEMORY.of(one.step.shape.modality) for one in steps if one.peak_bytes is not None
    }
