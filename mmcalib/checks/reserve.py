"""Profile against worst step; caches; memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mmcalib.checks.catalogue import (
    DEFAULT_CONFIGURATION,
    ENCODER_RESERVE,
    HINT_MAXIMUM,
    MEMORY_RESERVE,
    REQUEST_CACHE,
    SIZE_HINT,
    VLLM_RELEASE,
)
from mmcalib.checks.check import Check, Dialect, line
from mmcalib.checks.facts import CheckFacts, CheckStage, Rules
from mmcalib.checks.limits import LIMIT, hint, options
from mmcalib.derive.limits import Adequacy, Count, adequacy
from mmcalib.derive.processor_cache import parts, written_gib
from mmcalib.domain.knobs import Knob, Value, merged_nested
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.text import GIB, gib

# In bytes it takes the place of the one in tokens.
# The flags that it is about need a GPU.

_CACHE_SIZE = "mm_processor_cache_gb"
_FLAGS = (
    "--max-num-batched-tokens a multiple of the largest item, more --max-num-seqs, another "
    "--max-tokens-per-item, or --allow-under-reserve"
)
_LINES = "a smaller max-num-batched-tokens, or a cap in mm-processor-kwargs"


@dataclass(frozen=True, slots=True)
class Cure:
    """Engine arguments to try, and the lines that bring them; `knob` at `value` shrinks items."""

    engine_args: Mapping[str, Any]
    lines: str
    knob: Knob | None = None
    value: Value = 0


def reserved(
    engine_args: Mapping[str, Any], budget: Budget, served: Mapping[Modality, Count]
) -> Adequacy:
    """R4 in tokens; a profile that is skipped encodes none."""
    found = adequacy(budget, {m: count.value for m, count in served.items()})
    return replace(found, profiled_tokens=0) if engine_args.get("skip_mm_profiling") else found


def embeddings_alone(budget: Budget) -> Check | None:
    """R4 where only embeddings are taken, of which vLLM's profile holds nothing; else None."""
    if budget.max_tokens_per_item or not budget.encoder_budget_tokens:
        return None
    return Check(
        MEMORY_RESERVE,
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
    """R4 in tokens; `cures` were tried and pass. `allowed`: by --allow-under-reserve."""
    number = dialect.number
    detail = (
        f"vLLM's startup profile encodes {number(found.profiled_tokens)} tokens, one step at most "
        f"{number(found.worst_step_tokens)}{found.of}: {found.ratio:.2f}"
    )
    if found.passes:
        return Check(MEMORY_RESERVE, "pass", detail)
    starts = dialect.say(
        flags="the engine would start and may run out of memory under load",
        lines="the engine starts, looks roomy and may run out of memory under load of "
        f"{modality or 'media'}",
    )
    return Check(
        MEMORY_RESERVE,
        "warn" if allowed else "fail",
        f"under-reserved: {detail}; {starts}",
        "\n".join(cures) or dialect.say(flags=_FLAGS, lines=_LINES),
    )


def check_skipped_profile(facts: CheckFacts) -> Iterator[Check]:
    """`skip_mm_profiling` leaves the encoder out of what is reserved."""
    judged, room = facts.configuration, facts.tries.room
    if not judged.engine_args.get("skip_mm_profiling"):
        return
    size, lower = "", ""
    if room is not None:
        size = f" and take {gib(room.peak_bytes)}"
        lower = f", or {line('gpu_memory_utilization', room.reserving_utilization)}"
    yield Check(
        ENCODER_RESERVE,
        "fail",
        "skip_mm_profiling: nothing is reserved for the encoder, though one step may encode "
        f"{judged.adequacy.worst_step_tokens:,} tokens{size}; that memory is given to the KV cache",
        f"remove skip-mm-profiling{lower}",
    )


def cures(engine_args: Mapping[str, Any], budget: Budget, opened: ModelInfo) -> Iterator[Cure]:
    """What may cure under-reserving: the hint's size as a cap of the processor, or no hint."""
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
            kwargs = merged_nested(engine_args.get(knob.argument), knob.kwargs(value))
            lines = f"{line(LIMIT, plain)} and {line(knob.argument, kwargs)}"
            yield Cure({**without, knob.argument: kwargs}, lines, knob, value)
    yield Cure(without, line(LIMIT, plain))


def check_reserved(facts: CheckFacts) -> Iterator[Check]:
    """One check: R4 in tokens."""
    judged, tries = facts.configuration, facts.given_tries
    alone = embeddings_alone(judged.budget) if facts.dialect is Dialect.LINES else None
    yield alone or reserved_check(
        judged.adequacy,
        judged.budget.profiled_modality,
        tries.cures if tries else (),
        facts.dialect,
        allowed=facts.policy.allow_under_reserve,
    )


def check_written_hints(facts: CheckFacts) -> Iterator[Check]:
    """Per size hint: whether vLLM heeds it, and what it shrinks."""
    limits = facts.configuration.engine_args.get(LIMIT) or {}
    (reserved,) = check_reserved(facts)
    for modality in facts.model.modalities:
        size = hint(limits, modality)
        dummy = facts.configuration.budget.dummies.get(modality)
        largest = facts.configuration.plain.dummies.get(modality)
        if size and dummy is not None and largest is not None:
            yield from _check_clamped_hint(limits, modality, size, largest)
            yield _check_shrunk_hint(facts, modality, dummy, reserved.remedy)


def _check_clamped_hint(
    limits: Mapping[str, Any], modality: Modality, size: Mapping[str, int], largest: Dummy
) -> Iterator[Check]:
    above = {axis: most for axis, most in largest.size.items() if size.get(axis, 0) > most}
    if not above:
        return
    asked = ", ".join(f"{axis} {size[axis]:,}" for axis in above)
    takes = ", ".join(f"{axis} {most:,}" for axis, most in above.items())
    kept = {n: v for n, v in options(limits, modality).items() if n not in above}
    value = kept if len(kept) > 1 or "count" not in kept else kept["count"]
    yield Check(
        HINT_MAXIMUM.of(modality),
        "warn",
        f"{asked}: above vLLM's own largest {modality} ({takes}), so it is ignored with a line "
        "in the log; a hint can only make the profiled item smaller",
        line(LIMIT, {**limits, modality: value}),
    )


def _check_shrunk_hint(facts: CheckFacts, modality: Modality, dummy: Dummy, remedy: str) -> Check:
    """Hints that shrink the profile alone are traps; those of the cache too refuse larger items."""
    name, limits = SIZE_HINT.of(modality), facts.configuration.engine_args[LIMIT]
    budget, plain = facts.configuration.budget, facts.configuration.plain
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


def check_derived_hints(facts: CheckFacts) -> Iterator[Check]:
    for modality, size in facts.decision.hints.items():
        named = ", ".join(f"{axis} {value}" for axis, value in size.items())
        dummy = facts.configuration.budget.dummies[modality].embeds
        detail = f"{named}: vLLM's dummy costs {dummy} tokens, as the largest item does"
        yield Check(SIZE_HINT.of(modality), "pass", detail)
    for modality, why in facts.decision.refused_hints.items():
        detail = f"none emitted: with the corpus' largest size {why}"
        yield Check(SIZE_HINT.of(modality), "pass", detail)


def check_cache_floor(facts: CheckFacts) -> Iterator[Check]:
    """None where vLLM has no such cache, or one that pushes out nothing of the request at hand:
    `shm` keeps what is touched (`ShmObjectStoreSenderCache`, vllm/multimodal/cache/shm.py of 0.32),
    which data-parallel engines of one server do not have (`_get_cache_type`, factories.py).
    """
    args, floor = facts.configuration.engine_args, facts.tries.cache_floor
    given = args.get(_CACHE_SIZE)
    size = PROCESSOR_CACHE_GIB if given is None else given
    alone = (args.get("data_parallel_size") or 1) == 1
    if floor is None or not size or not floor.nbytes:
        return
    if alone and args.get("mm_processor_cache_type") == "shm":
        return
    said = f"{_CACHE_SIZE} {size:g}" if given is not None else f"vLLM's default of {size} GiB"
    most = f"{' + '.join(parts(floor))} = {gib(floor.nbytes)} (computed)"
    if floor.nbytes <= size * GIB:
        yield Check(REQUEST_CACHE, "pass", f"{said}; one admissible request may bring {most}")
        return
    yield Check(
        REQUEST_CACHE,
        "warn",
        f"{said}, but one admissible request may bring {most}: where its new items push out one "
        "that it found cached, vLLM ends it with HTTP 500, `Expected a cached item` "
        "(_merge_mm_kwargs, vllm/multimodal/processing/processor.py)",
        f"{line(_CACHE_SIZE, 0)}, or {line(_CACHE_SIZE, written_gib(floor.nbytes))} where the host "
        "has that twice, or smaller limits",
    )


def moved_parts(opened: ModelInfo) -> Iterator[Check]:
    """A warning for what this release could not be asked for."""
    for part, why in opened.moved.items():
        detail = f"{part}: not known, and nothing is said of it: {why}"
        yield Check(VLLM_RELEASE, "warn", detail, "mmcalib doctor")


def check_default_starts(facts: CheckFacts) -> Iterator[Check]:
    if error := facts.decision.default_error:
        detail = f"vLLM refuses to start with its defaults: {error}"
        yield Check(DEFAULT_CONFIGURATION, "warn", detail)


RULES: Final[Rules] = {
    check_skipped_profile: {CheckStage.WRITTEN: 60},
    check_reserved: {CheckStage.DECIDED: 210, CheckStage.WRITTEN: 80},
    check_written_hints: {CheckStage.WRITTEN: 50},
    check_derived_hints: {CheckStage.DECIDED: 180},
    check_cache_floor: {CheckStage.WRITTEN: 70},
    lambda facts: moved_parts(facts.model): {CheckStage.WRITTEN: 10},
    check_default_starts: {CheckStage.DECIDED: 110},
}
