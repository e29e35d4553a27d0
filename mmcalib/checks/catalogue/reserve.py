"""Traps of what vLLM's startup profile reserves: size hints, and no profile at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmcalib.checks.catalogue.limits import LIMIT, hint, options
from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import Dialect, line
from mmcalib.checks.facts import CheckFacts, Need
from mmcalib.checks.room import Room
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.derive.adequacy import Adequacy, adequacy
from mmcalib.derive.limits import Count
from mmcalib.domain.budget import Budget
from mmcalib.domain.knobs import Knob
from mmcalib.domain.media_option import Value
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.nested import merged
from mmcalib.domain.shapes import Modality
from mmcalib.wording import gib

# In bytes it takes the place of the one in tokens.
RESERVED = CheckId("adequately reserved")
ENCODER_RESERVED = CheckId("encoder reserved")

_FLAGS = (
    "--max-num-batched-tokens a multiple of the largest item, more --max-num-seqs, another "
    "--max-tokens-per-item, or --allow-under-reserve"
)
_LINES = "a smaller max-num-batched-tokens, or a cap in mm-processor-kwargs"


@dataclass(frozen=True, slots=True)
class Cure:
    """Engine arguments that are tried before they are proposed, and the lines that bring them;
    `knob` at `value` makes items smaller.
    """

    engine_args: Mapping[str, Any]
    lines: str
    knob: Knob | None = None
    value: Value = 0


def reserved(
    engine_args: Mapping[str, Any], budget: Budget, served: Mapping[Modality, Count]
) -> Adequacy:
    """R4 in tokens; a profile that is skipped encodes none."""
    found = adequacy(budget, {m: count.value for m, count in served.items()})
    if engine_args.get("skip_mm_profiling"):
        return replace(found, profiled_tokens=0)
    return found


def embeddings_alone(budget: Budget) -> Check | None:
    """R4 of a configuration that takes embeddings and no media: the cache holds what is handed in,
    and vLLM's profile runs and holds nothing of it. None of any other.
    """
    if budget.max_tokens_per_item or not budget.encoder_budget_tokens:
        return None
    return Check(
        RESERVED,
        "warn",
        f"embeddings alone are taken: up to {budget.encoder_cache_size:,} tokens of them stay in "
        "the encoder cache, and vLLM's startup profile holds none",
    )


def reserved_check(
    found: Adequacy,
    modality: Modality | None,
    cures: Sequence[str],
    dialect: Dialect = Dialect.LINES,
    *,
    allowed: bool = False,
) -> Check:
    """R4 in tokens; `cures` are what a user may say with which it passes, each tried. `allowed`: by
    --allow-under-reserve.
    """
    number = dialect.number
    detail = (
        f"vLLM's startup profile encodes {number(found.profiled_tokens)} tokens, one step at most "
        f"{number(found.worst_step_tokens)}{found.of}: {found.ratio:.2f}"
    )
    if found.passes:
        return Check(RESERVED, "pass", detail)
    starts = dialect.say(
        flags="the engine would start and may run out of memory under load",
        lines="the engine starts, looks roomy and may run out of memory under load of "
        f"{modality or 'media'}",
    )
    return Check(
        RESERVED,
        "warn" if allowed else "fail",
        f"under-reserved: {detail}; {starts}",
        "\n".join(cures) or dialect.say(flags=_FLAGS, lines=_LINES),
    )


def skipped_profile(
    engine_args: Mapping[str, Any], found: Adequacy, room: Room | None
) -> Check | None:
    """`skip_mm_profiling` leaves the encoder out of what is reserved; `room` where it was
    rehearsed.
    """
    if not engine_args.get("skip_mm_profiling"):
        return None
    size, lower = "", ""
    if room is not None:
        size = f" and take {gib(room.peak_bytes)}"
        lower = f", or {line('gpu_memory_utilization', room.utilization)}"
    return Check(
        ENCODER_RESERVED,
        "fail",
        "skip_mm_profiling: nothing is reserved for the encoder, though one step may encode "
        f"{found.worst_step_tokens:,} tokens{size}; that memory is given to the KV cache",
        f"remove skip-mm-profiling{lower}",
    )


def cures(engine_args: Mapping[str, Any], budget: Budget, opened: ModelInfo) -> Iterator[Cure]:
    """What may make an under-reserved configuration honest: the size of the hint as a cap of the
    processor, in the spelling that it has; or no hint.
    """
    modality = budget.profiled_modality
    limits = engine_args.get(LIMIT) or {}
    size = hint(limits, modality) if modality else {}
    if modality is None or not size:
        return
    plain = {**limits, modality: options(limits, modality).get("count", 1)}
    without = {**engine_args, LIMIT: plain}
    for knob in opened.knobs:
        value = knob.value_for_size(size) if knob.modality == modality else None
        if value is not None:
            kwargs = merged(engine_args.get(knob.argument), knob.kwargs(value))
            lines = f"{line(LIMIT, plain)} and {line(knob.argument, kwargs)}"
            yield Cure({**without, knob.argument: kwargs}, lines, knob, value)
    yield Cure(without, line(LIMIT, plain))


def reserved_in_tokens(facts: CheckFacts) -> Check:
    judged, tries = facts.configuration, facts.given_tries
    alone = embeddings_alone(judged.budget) if facts.dialect is Dialect.LINES else None
    return alone or reserved_check(
        judged.adequacy,
        judged.budget.profiled_modality,
        tries.cures if tries else (),
        facts.dialect,
        allowed=facts.policy.allow_under_reserve,
    )


def _reserved(facts: CheckFacts) -> Iterator[Check]:
    yield reserved_in_tokens(facts)


def _skipped(facts: CheckFacts) -> Iterator[Check]:
    judged = facts.configuration
    check = skipped_profile(judged.engine_args, judged.adequacy, facts.tries.room)
    if check is not None:
        yield check


RULES = (
    Rule((RESERVED,), {CheckStage.DECIDED: 160, CheckStage.WRITTEN: 70}, _reserved),
    Rule((ENCODER_RESERVED,), {CheckStage.WRITTEN: 50}, _skipped, frozenset({Need.TRIES})),
)
