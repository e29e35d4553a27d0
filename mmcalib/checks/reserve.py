"""Checks of the memory reserve: vLLM's startup profile against the worst step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import Check, RemedyStyle, yaml_line
from mmcalib.checks.facts import CheckFacts
from mmcalib.checks.limits import CACHE, limit_options, size_hint
from mmcalib.derive.limits import LIMIT, Count, ProfileReserve, compute_reserve
from mmcalib.derive.processor_cache import describe_floor, round_up_gib
from mmcalib.domain.knobs import Knob, Value, merge_nested
from mmcalib.domain.memory import Budget, Dummy, floor_utilization
from mmcalib.domain.model import BODY_BYTES, ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, SHM_OBJECT_MIB
from mmcalib.remedies.memory import Remedy
from mmcalib.text import GIB, MIB, gib

_OBJECT_SIZE = "mm_shm_cache_max_object_size_mb"
_FLAGS = (
    "--max-num-batched-tokens a multiple of the largest item, more --max-num-seqs, another "
    "--max-tokens-per-item, or --allow-under-reserve"
)
_LINES = "a smaller max-num-batched-tokens, or a cap in mm-processor-kwargs"


def token_adequacy(
    engine_args: Mapping[str, Any], budget: Budget, served: Mapping[Modality, Count]
) -> ProfileReserve:
    """The reserve in tokens; a skipped profile encodes none."""
    found = compute_reserve(budget, {m: count.value for m, count in served.items()})
    return replace(found, profiled_tokens=0) if engine_args.get("skip_mm_profiling") else found


def embeddings_only_check(budget: Budget) -> Check | None:
    """The check for a server of embeddings only, which vLLM does not profile; else None."""
    if budget.max_tokens_per_item or not budget.encoder_budget_tokens:
        return None
    return Check(
        ids.MEMORY_RESERVE,
        "warn",
        f"clients send only embeddings: up to {budget.encoder_cache_size:,} tokens stay in the "
        "encoder cache, and vLLM's startup profile includes none",
    )


def profile_check(
    found: ProfileReserve,
    modality: Modality | None,
    remedies: Sequence[str],
    dialect: RemedyStyle = RemedyStyle.LINES,
    *,
    allowed: bool = False,
) -> Check:
    """The reserve in tokens. `reserve_remedies` pass; `allowed` by --allow-under-reserve."""
    number = dialect.number
    detail = (
        f"vLLM's startup profile encodes {number(found.profiled_tokens)} tokens, one step at most "
        f"{number(found.worst_step_tokens)}{found.clip_suffix}: {found.ratio:.2f}"
    )
    if found.passes:
        return Check(ids.MEMORY_RESERVE, "pass", detail)
    load = dialect.choose(flags="load", lines=f"load of {modality or 'media'}")
    return Check(
        ids.MEMORY_RESERVE,
        "warn" if allowed else "fail",
        f"under-reserved: {detail}; the engine starts and may run out of memory under {load}",
        "\n".join(remedies) or dialect.choose(flags=_FLAGS, lines=_LINES),
    )


def check_skipped_profile(facts: CheckFacts) -> Iterator[Check]:
    """Fail for `skip_mm_profiling`, which reserves nothing for the encoder."""
    judged, short = facts.configuration, facts.tries.short
    if not judged.engine_args.get("skip_mm_profiling"):
        return
    size, lower = "", ""
    if short is not None:
        room = short.requested_bytes - max(0, short.nbytes)
        share = floor_utilization(room, short.total_bytes)
        size = f" and take {gib(short.worst.nbytes)}"
        lower = f", or {yaml_line('gpu_memory_utilization', share)}"
    yield Check(
        ids.ENCODER_RESERVE,
        "fail",
        "skip_mm_profiling: vLLM reserves nothing for the encoder and gives that memory to the KV "
        f"cache. One step may encode {judged.adequacy.worst_step_tokens:,} tokens{size}",
        f"remove skip-mm-profiling{lower}",
    )


def reserve_remedies(
    engine_args: Mapping[str, Any], budget: Budget, opened: ModelInfo
) -> Iterator[tuple[Remedy, tuple[Knob, Value] | None]]:
    """Remedies to try: the size hint as the cap of a knob, or no size hint."""
    modality = budget.profiled_modality
    limits = engine_args.get(LIMIT) or {}
    size = size_hint(limits, modality) if modality else {}
    if modality is None or not size:
        return
    plain = {LIMIT: {**limits, modality: limit_options(limits, modality).get("count", 1)}}
    for knob in opened.knobs:
        value = knob.value_for_size(size) if knob.modality == modality else None
        if value is not None:
            kwargs = merge_nested(engine_args.get(knob.argument), knob.kwargs(value))
            changes = {**plain, knob.argument: kwargs}
            yield Remedy("size hint", changes, "quality", ""), (knob, value)
    yield Remedy("size hint", plain, "KV cache", ""), None


def check_reserved(facts: CheckFacts) -> Iterator[Check]:
    judged = facts.configuration
    alone = embeddings_only_check(judged.budget) if facts.dialect is RemedyStyle.LINES else None
    yield alone or profile_check(
        judged.adequacy,
        judged.budget.profiled_modality,
        facts.tries.remedies,
        facts.dialect,
        allowed=facts.policy.allow_under_reserve,
    )


def check_written_hints(facts: CheckFacts) -> Iterator[Check]:
    """Check each size hint: whether vLLM uses it, and what it shrinks."""
    limits = facts.configuration.engine_args.get(LIMIT) or {}
    (reserved,) = check_reserved(facts)
    for modality in facts.model.modalities:
        size = size_hint(limits, modality)
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
    kept = {n: v for n, v in limit_options(limits, modality).items() if n not in above}
    value = kept if len(kept) > 1 or "count" not in kept else kept["count"]
    yield Check(
        ids.HINT_MAXIMUM.of(modality),
        "warn",
        f"{asked}: above vLLM's own largest {modality} ({takes}), so vLLM ignores it. A size hint "
        "can only shrink the profiled item",
        yaml_line(LIMIT, {**limits, modality: value}),
    )


def _check_shrunk_hint(facts: CheckFacts, modality: Modality, dummy: Dummy, remedy: str) -> Check:
    """Fail for a hint that shrinks the profile but not the items that vLLM admits."""
    name, limits = ids.SIZE_HINT.of(modality), facts.configuration.engine_args[LIMIT]
    budget, plain = facts.configuration.budget, facts.configuration.plain
    size = ", ".join(f"{axis} {value:,}" for axis, value in size_hint(limits, modality).items())
    most, before = budget.max_tokens_per_item[modality], plain.max_tokens_per_item[modality]
    if dummy.embeds < most:
        detail = (
            f"{size}: the profiled {modality} shrinks to {dummy.embeds:,} tokens, but vLLM still "
            f"admits {most:,}"
        )
        if budget.profiled_modality != modality:
            other = budget.profiled_modality
            return Check(name, "warn", f"{detail}; no effect here, as vLLM profiles {other}")
        return Check(name, "fail", f"{detail}; the difference is not reserved", remedy)
    if most < before and budget.encoder_budget_tokens < before:
        detail = f"{size}: one {modality} takes at most {most:,} tokens instead of {before:,}"
        return Check(
            name,
            "warn",
            f"{detail}. vLLM rejects one that exceeds the encoder cache of "
            f"{budget.encoder_budget_tokens:,} tokens (HTTP 400)",
            "--data DIR checks your own media",
        )
    detail = f"{size}: the profiled {modality} has {dummy.embeds:,} tokens"
    if dummy.embeds == plain.dummies[modality].embeds:
        detail += " with and without the hint"
    return Check(name, "pass", detail)


def check_derived_hints(facts: CheckFacts) -> Iterator[Check]:
    for modality, size in facts.decision.hints.items():
        named = ", ".join(f"{axis} {value}" for axis, value in size.items())
        dummy = facts.configuration.budget.dummies[modality].embeds
        detail = f"{named}: vLLM profiles {dummy} tokens, as many as the largest item takes"
        yield Check(ids.SIZE_HINT.of(modality), "pass", detail)
    for modality, why in facts.decision.refused_hints.items():
        detail = f"no size hint: with the largest size of the data {why}"
        yield Check(ids.SIZE_HINT.of(modality), "pass", detail)


def check_cache_floor(facts: CheckFacts) -> Iterator[Check]:
    """Check that the processor cache holds one request, which could evict its own items. `shm`
    keeps items in use (`ShmObjectStoreSenderCache`, vllm/multimodal/cache/shm.py of 0.32), but
    data-parallel engines of one server do not have it (`_get_cache_type`, factories.py).
    """
    args, floor = facts.configuration.engine_args, facts.tries.cache_floor
    given = args.get(CACHE)
    size = PROCESSOR_CACHE_GIB if given is None else given
    alone = (args.get("data_parallel_size") or 1) == 1
    if floor is None or not size or not floor.nbytes:
        return
    if alone and args.get("mm_processor_cache_type") == "shm":
        yield from _check_shared_items(args, facts.tries.largest_bytes)
        return
    given_size = f"{CACHE} {size:g}" if given is not None else f"vLLM's default of {size} GiB"
    most = f"{describe_floor(floor)} (computed)"
    if floor.nbytes <= size * GIB:
        yield Check(ids.REQUEST_CACHE, "pass", f"{given_size}; one request may bring {most}")
        return
    yield Check(
        ids.REQUEST_CACHE,
        "warn",
        f"{given_size}, but one request may bring {most}. If its new items evict one that it found "
        "in the cache, vLLM answers HTTP 500, `Expected a cached item` "
        "(_merge_mm_kwargs, vllm/multimodal/processing/processor.py)",
        f"{yaml_line(CACHE, 0)}, or {yaml_line(CACHE, round_up_gib(floor.nbytes))} if "
        "the host has twice that, or smaller limits",
    )


def _check_shared_items(
    args: Mapping[str, Any], largest_bytes: Mapping[Modality, int]
) -> Iterator[Check]:
    """`SingleWriterShmObjectStorage.put` stores no larger item (vllm/distributed, 0.33)."""
    given = args.get(_OBJECT_SIZE)
    most = SHM_OBJECT_MIB if given is None else given
    for modality, nbytes in largest_bytes.items():
        if nbytes > most * MIB:
            detail = (
                f"{_OBJECT_SIZE} {most}, but one {modality} may take {nbytes / MIB:,.0f} MiB "
                "(computed): vLLM processes it anew in every request"
            )
            remedy = yaml_line(_OBJECT_SIZE, nbytes // MIB + 2)
            yield Check(ids.SHARED_CACHE.of(modality), "warn", detail, remedy)


def check_variables(facts: CheckFacts) -> Iterator[Check]:
    """Warn about each limit in the environment that this server does not apply."""
    opened = facts.model
    for name in opened.server.given:
        if name not in opened.server.limits:
            detail = f"vLLM {opened.versions.get('vllm', '')}'s server does not apply this variable"
            if name == BODY_BYTES:
                detail += "; only the Rust front end of 0.33 does (VLLM_USE_RUST_FRONTEND=1)"
            yield Check(ids.EFFECT_OF.of(name), "warn", detail, f"unset {name}")


def missing_parts(opened: ModelInfo) -> Iterator[Check]:
    """A warning for each part that is missing in this release of vLLM."""
    for part, why in opened.unavailable.items():
        detail = f"mmcalib cannot read {part} from this release, so it is not checked: {why}"
        yield Check(ids.VLLM_RELEASE, "warn", detail, "mmcalib doctor")


def check_default_starts(facts: CheckFacts) -> Iterator[Check]:
    if error := facts.decision.default_error:
        detail = f"vLLM does not start with its defaults: {error}"
        yield Check(ids.DEFAULT_CONFIGURATION, "warn", detail)
