"""Traps of whole prompts: more items, or larger ones, than the context holds (R5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, assert_never

from mmcalib.checks.catalogue.limits import LIMIT, hint
from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import Dialect, line, line_of
from mmcalib.checks.facts import CheckFacts, Fullest, Need
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.derive.fit import Fit
from mmcalib.derive.limits import Count
from mmcalib.domain.budget import Budget
from mmcalib.domain.knobs import Knob
from mmcalib.domain.shapes import Modality

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


def _admitted(facts: CheckFacts) -> Iterator[Check]:
    """Requests with more items than the limits admit end with HTTP 400."""
    over, dialect = facts.corpus.over, facts.dialect
    if over is None:
        return
    limits = facts.configuration.engine_args.get(LIMIT) or {}
    more = {m: n for m, n in over.most.items() if n > facts.items[m]}
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


RULES = (
    Rule(
        (REQUESTS_ADMITTED,),
        {CheckStage.DECIDED: 60, CheckStage.MEASURED: 70},
        _admitted,
        frozenset({Need.CORPUS}),
    ),
    Rule(
        (PROMPTS_FIT,),
        {CheckStage.DECIDED: 70, CheckStage.WRITTEN: 30, CheckStage.MEASURED: 80},
        _fit,
    ),
)
