"""Traps of what vLLM's startup profile reserves: size hints, and no profile at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmcalib.checks.catalogue.limits import LIMIT, hint, options
from mmcalib.checks.catalogue.size_hints import HINT_WITHIN, SIZE_HINT
from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line
from mmcalib.derive.adequacy import Adequacy, adequacy
from mmcalib.derive.limits import Count
from mmcalib.derive.nested import merged
from mmcalib.domain.budget import Budget, Dummy
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality

# In bytes it takes the place of the one in tokens.
RESERVED = CheckId("adequately reserved")
ENCODER_RESERVED = CheckId("encoder reserved")


@dataclass(frozen=True, slots=True)
class Cure:
    """Engine arguments that are tried before they are proposed, and the lines that bring them."""

    engine_args: Mapping[str, Any]
    lines: str


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


def reserved_check(found: Adequacy, modality: str | None, cures: Sequence[str]) -> Check:
    """R4 in tokens; `cures` are lines of a file with which it passes, each tried."""
    detail = (
        f"vLLM's startup profile encodes {found.profiled_tokens:,} tokens, one step at most "
        f"{found.worst_step_tokens:,}{found.of}: {found.ratio:.2f}"
    )
    if found.passes:
        return Check(RESERVED, "pass", detail)
    return Check(
        RESERVED,
        "fail",
        f"under-reserved: {detail}; the engine starts, looks roomy and may run out of memory "
        f"under load of {modality or 'media'}",
        " or ".join(cures) or "a smaller max-num-batched-tokens, or a cap in mm-processor-kwargs",
    )


@dataclass(frozen=True, slots=True)
class Room:
    """On one GPU: bytes in all and as asked for, what the costliest step takes, and what of that
    the profile reserves all the same.
    """

    total_bytes: int
    requested_bytes: int
    peak_bytes: int
    reserved_bytes: int

    @property
    def utilization(self) -> float:
        """The `gpu_memory_utilization` that leaves room for the rest, in whole hundredths."""
        short = max(0, self.peak_bytes - self.reserved_bytes)
        return math.floor((self.requested_bytes - short) / self.total_bytes * 100) / 100


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
        size = f" and take {room.peak_bytes / 2**30:.2f} GiB"
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
            yield Cure({**without, knob.argument: kwargs}, lines)
    yield Cure(without, line(LIMIT, plain))


def hint_findings(
    engine_args: Mapping[str, Any],
    opened: ModelInfo,
    budget: Budget,
    plain: Budget,
    remedy: str,
) -> Iterator[Check]:
    """Per size hint: whether vLLM heeds it, and what it shrinks. `plain` is the budget of the same
    configuration without hints; both with their dummies. `remedy` is what makes it honest.
    """
    limits = engine_args.get(LIMIT) or {}
    for modality in opened.modalities:
        size = hint(limits, modality)
        dummy, largest = budget.dummies.get(modality), plain.dummies.get(modality)
        if size and dummy is not None and largest is not None:
            yield from _clamped(limits, modality, size, largest)
            yield _shrunk(limits, modality, budget, plain, dummy, remedy)


def _clamped(
    limits: Mapping[str, Any], modality: str, size: Mapping[str, int], largest: Dummy
) -> Iterator[Check]:
    above = {axis: most for axis, most in largest.size.items() if size.get(axis, 0) > most}
    if not above:
        return
    asked = ", ".join(f"{axis} {size[axis]:,}" for axis in above)
    takes = ", ".join(f"{axis} {most:,}" for axis, most in above.items())
    kept = {n: v for n, v in options(limits, modality).items() if n not in above}
    value = kept if len(kept) > 1 or "count" not in kept else kept["count"]
    yield Check(
        HINT_WITHIN.of(modality),
        "warn",
        f"{asked}: above vLLM's own largest {modality} ({takes}), so it is ignored with a line "
        "in the log; a hint can only make the profiled item smaller",
        line(LIMIT, {**limits, modality: value}),
    )


def _shrunk(
    limits: Mapping[str, Any],
    modality: str,
    budget: Budget,
    plain: Budget,
    dummy: Dummy,
    remedy: str,
) -> Check:
    """A hint that shrinks the profiled item alone is a trap; one that shrinks the encoder cache too
    makes larger items impossible.
    """
    name = SIZE_HINT.of(modality)
    size = ", ".join(f"{axis} {value:,}" for axis, value in hint(limits, modality).items())
    most, before = budget.max_tokens_per_item[modality], plain.max_tokens_per_item[modality]
    if dummy.embeds < most:
        detail = (
            f"{size}: the profiled {modality} shrinks to {dummy.embeds:,} tokens, what one may "
            f"take stays {most:,}"
        )
        if budget.profiled_modality != modality:
            other = budget.profiled_modality
            return Check(name, "warn", f"{detail}; without effect here: vLLM profiles {other}")
        return Check(name, "fail", f"{detail}: nobody reserves the difference", remedy)
    if most < before and budget.encoder_budget_tokens < before:
        detail = f"{size}: one {modality} takes at most {most:,} tokens instead of {before:,}"
        return Check(
            name,
            "warn",
            f"{detail}; one of more than the {budget.encoder_budget_tokens:,} tokens that the "
            "encoder cache holds ends with HTTP 400",
            "--data DIR checks it against your own media",
        )
    detail = f"{size}: the profiled {modality} costs {dummy.embeds:,} tokens"
    if dummy.embeds == plain.dummies[modality].embeds:
        detail += " with it and without: it changes nothing"
    return Check(name, "pass", detail)
