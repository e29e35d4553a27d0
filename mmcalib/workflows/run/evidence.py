"""Give the reason for each setting's value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mmcalib.checks.catalogue import LARGE_ITEMS, PROCESSOR_CACHE
from mmcalib.checks.check import Check
from mmcalib.checks.facts import Decision
from mmcalib.checks.limits import CACHE
from mmcalib.derive.effects import Effect
from mmcalib.derive.frontier import Point
from mmcalib.derive.limits import resident_items
from mmcalib.derive.policy import FIT, Policy
from mmcalib.derive.processor_cache import (
    CappedCache,
    DecidedCache,
    SizedCache,
    UnsizedCache,
    describe_floor,
    round_up_gib,
)
from mmcalib.domain.knobs import Label
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.models.gpus import Gpu
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, PROCESSOR_CACHES
from mmcalib.results.calibration import Evidence, ProcessorCache
from mmcalib.text import GIB, flag, gib, number, plural, share

# Points of the hit curve in the document: enough to draw it.
_POINTS = 32


def cache_evidence(decision: Decision) -> Iterator[Evidence]:
    cache = decision.cache
    if isinstance(cache, UnsizedCache):
        return
    yield Evidence(
        setting=CACHE,
        value=cache.mm_processor_cache_gb,
        label="computed",
        reason=_cache_reason(cache),
        exemplar=cache.often if isinstance(cache, SizedCache) and cache.times > 1 else "",
    )


def _capped_reason(cache: CappedCache) -> str:
    most = f"the largest allowed request needs {describe_floor(cache.floor)}"
    if cache.gib:
        budgeted = cache.allowed_gib < PROCESSOR_CACHE_GIB
        at_most = "the RAM budget allows" if budgeted else "one request needs"
        return f"as large as {at_most}: without request order the best size is unknown; {most}"
    allows = f"the RAM budget allows {cache.allowed_gib:g} GiB per process"
    if not cache.budgeted:
        allows = f"vLLM's default is {PROCESSOR_CACHE_GIB} GiB"
    return f"off: {most}; {allows}, and vLLM fails requests that exceed its cache"


def _cache_reason(cache: SizedCache | CappedCache) -> str:
    if isinstance(cache, CappedCache):
        return _capped_reason(cache)
    curve, size = cache.curve, cache.size
    first = "" if cache.complete else "the first "
    items = f"{first}{number(curve.accesses)} items in {plural(cache.requests, 'request')}"
    if not curve.most_hits:
        return f"none of {items} repeats in a later one: a cache would never hit"
    default = f"vLLM's {PROCESSOR_CACHE_GIB} GiB {share(curve.rate_at(PROCESSOR_CACHE_GIB * GIB))}"
    if size.floor_bytes > PROCESSOR_CACHE_GIB * GIB:
        default = f"vLLM's {PROCESSOR_CACHE_GIB} GiB cannot hold the largest allowed request"
    most = f"an unlimited cache hits {share(curve.most_rate)}, {default}"
    if not size.mm_processor_cache_gb:
        # Items do repeat, but no allowed size is safe or hits.
        need = f"but the largest allowed request needs {describe_floor(cache.floor)}"
        need = need if size.is_unsafe else "too little to hit"
        why = f"off: {size.allowed_gib:g} GiB per process are allowed, {need}; of {items} {most}"
    else:
        why = f"expected hit rate {share(size.hit_rate)}; {items}, {most}"
    if size.floor_limited:
        why += f"; at least what the largest allowed request needs, {describe_floor(cache.floor)}"
    if size.is_limited:
        why += f"; {share(size.wanted_hit_rate)} would take {size.wanted_gib:g} GiB per process"
    return why


def cache_report(decision: Decision) -> ProcessorCache | None:
    """Return the processor cache for `calibration.json`, or None if it was not sized."""
    cache = decision.cache
    if not isinstance(cache, SizedCache):
        return None
    curve, size = cache.curve, cache.size
    wanted = size.wanted_gib, round(size.wanted_hit_rate, 6)
    return ProcessorCache.from_value(
        cache,
        accesses=curve.accesses,
        hit_rate=round(size.hit_rate, 6),
        default_hit_rate=round(curve.rate_at(PROCESSOR_CACHE_GIB * GIB), 6),
        wanted=wanted if size.wanted_gib > cache.mm_processor_cache_gb else None,
        curve=tuple((capacity, round(rate, 6)) for capacity, rate in curve.points(_POINTS)),
    )


def cache_checks(decision: Decision, policy: Policy) -> Iterator[Check]:
    own_gib = decision.engine_args.get(CACHE)
    if isinstance(decision.cache, UnsizedCache) and own_gib is not None:
        yield Check(PROCESSOR_CACHE, "skip", f"not sized: no requests; your {own_gib:g} GiB apply")
    else:
        yield _processor_cache(decision.cache, policy)
    yield from _large_items(decision)


def _processor_cache(cache: DecidedCache, policy: Policy) -> Check:
    name = PROCESSOR_CACHE
    if isinstance(cache, UnsizedCache):
        return Check(name, "skip", cache.reason)
    if isinstance(cache, CappedCache):
        least = f"--ram-budget {PROCESSOR_CACHES * round_up_gib(cache.floor.nbytes):g}GiB or more"
        remedy = "" if cache.gib else f"{least}, if the host has it"
        return Check(name, "pass" if cache.gib else "warn", _cache_reason(cache), remedy)
    size = cache.size
    most = f"at most {gib(size.total_bytes)} of RAM in both processes of a server"
    default = gib(PROCESSOR_CACHES * PROCESSOR_CACHE_GIB * GIB)
    detail = f"{most}, by default {default}: {_cache_reason(cache)}"
    if not size.is_limited:
        return Check(name, "pass", detail)
    more = f"--ram-budget {PROCESSOR_CACHES * size.wanted_gib:g}GiB, if the host has it"
    if policy.ram_budget_bytes is None:
        return Check(name, "pass", f"{detail}: {more}")
    return Check(name, "warn", f"{gib(policy.ram_budget_bytes)} are allowed, {detail}", more)


def _large_items(decision: Decision) -> Iterator[Check]:
    """Check items that block the encoder cache; `items admitted` reports those that never fit."""
    name, budget = LARGE_ITEMS, decision.budget
    size = budget.encoder_cache_size
    modalities = {modality for modality, most in decision.items_per_prompt.items() if most}
    every = resident_items(decision.table, budget)
    large = [r for r in every if r.items and r.modality in modalities]
    blocking = [r for r in large if r.delays_others]
    if blocking and budget.max_num_seqs > 1:
        worst = max(blocking, key=lambda r: r.steps)
        item, batched = worst.item, budget.max_num_batched_tokens
        smaller = "; --max-tokens-per-item makes them smaller"
        yield Check(
            name,
            "warn",
            f"{worst.over_half} {worst.modality} items each take over half of the encoder cache "
            f"({size:,} tokens): {item.exemplar} occupies it for at least {worst.steps} steps of "
            f"{batched} tokens; the next large {worst.modality} waits",
            f"--max-num-batched-tokens {2 * item.embeds} makes room for two and takes GPU memory"
            + (smaller if worst.modality in decision.shrinkable_modalities() else ""),
            (item.exemplar,),
        )
    elif large:
        each = (f"{number(r.items)} × {r.modality} of {r.item.embeds} tokens" for r in large)
        yield Check(name, "pass", f"the encoder cache, {size} tokens, holds {' or '.join(each)}")


def evidence(
    decision: Decision,
    opened: ModelInfo,
    policy: Policy,
    gpu: Gpu | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Evidence]:
    """Yield one entry per emitted value, in the configuration's order; `given` are the user's."""
    for modality in decision.counts:
        yield from _limit(decision, modality)
    yield from _caps(decision, policy)
    for media, options in policy.media_io_kwargs.items():
        for name, value in options.items():
            yield _user_evidence(f"media_io_kwargs.{media}.{name}", value, "--media-io-kwargs")
    remedied: dict[str, Evidence | None] = {
        name: Evidence(setting=name, value=value, label="rehearsed", reason=remedy.price)
        for remedy in decision.remedies
        for name, value in remedy.changes.items()
    }
    yield remedied.pop("max_model_len", None) or _context(decision, policy)
    yield remedied.pop("max_num_batched_tokens", None) or _batched(decision, opened, policy, gpu)
    yield from filter(None, remedied.values())
    given = {**{n: getattr(policy, n) for n in ("max_num_seqs", "gpu_memory_utilization")}, **given}
    for name, value in given.items():
        if value is not None:
            yield _user_evidence(name, value, flag(name))
    yield from cache_evidence(decision)


def _user_evidence(setting: str, value: Any, option: str) -> Evidence:
    return Evidence(setting=setting, value=value, label="given", reason=f"given: {option}")


def add_effects(entries: Iterable[Evidence], effects: Sequence[Effect]) -> Iterator[Evidence]:
    """Yield the emitted settings, each with the change that switching it off makes."""
    for entry in entries:
        effect = next((e for e in effects if e.concerns(entry.setting)), None)
        if effect is None:
            yield entry
        elif effect.outcome != "idle":
            yield entry.model_copy(update={"effect": effect.words})


def _limit(decision: Decision, modality: Modality) -> Iterator[Evidence]:
    count = decision.counts[modality]
    name = f"limit_mm_per_prompt.{modality}"
    setting = f"{name}.count" if decision.hints.get(modality) else name
    yield Evidence.from_value(count, setting=setting)
    heaviest = decision.table.heaviest(modality)
    if heaviest is None:
        return
    for axis, value in decision.hints.get(modality, {}).items():
        yield Evidence(
            setting=f"{name}.{axis}",
            value=value,
            label="measured",
            reason=f"the costliest {modality}, {heaviest.shape}: {heaviest.embeds} tokens, "
            "the same as vLLM's dummy",
            exemplar=heaviest.exemplar,
        )


def _caps(decision: Decision, policy: Policy) -> Iterator[Evidence]:
    capped = policy.max_tokens_per_item is not None
    for point in decision.chosen:
        knob = point.knob
        if point.value == knob.value:
            continue
        largest = decision.table.heaviest(knob.modality)
        yield Evidence(
            setting=".".join(knob.key_path()),
            value=point.value,
            label="given" if capped and not knob.is_loader_option else "measured",
            reason=f"{_choice_reason(point, decision, policy)}; {knob.describe_value(point.value)}",
            exemplar=largest.exemplar if largest else "",
        )
        for name, value in knob.companions(point.value).items():
            yield Evidence(
                setting=".".join(knob.key_path(name)),
                value=value,
                label="computed",
                reason=f"processor default; required with {knob.path[-1]}",
            )


def _choice_reason(point: Point, decision: Decision, policy: Policy) -> str:
    downscaled = point.items_downscaled
    if point.knob.is_loader_option:
        return f"smallest with {policy.min_video_frames} frames of every video"
    if decision.forced and downscaled:
        return f"forced, {plural(downscaled, 'item')} downscaled: otherwise {decision.forced}"
    if policy.max_tokens_per_item is not None:
        smaller = plural(downscaled, "item")
        return f"--max-tokens-per-item {policy.max_tokens_per_item}: {smaller} downscaled"
    if policy.prefer == "throughput":
        return f"smallest that downscales at most half: {downscaled} items"
    if point.is_beyond_default:
        left = f"{point.items_shrunk:,} still shrink" if point.items_shrunk else "none shrinks"
        words = f"detail of {plural(point.items_gaining, point.knob.modality)}"
        words += "" if point.items_shrunk is None else f", {left}"
        return f"{words}; otherwise {decision.forced}" if decision.forced else words
    if decision.keeps_reserve:
        return "downscales nothing, and load leaves some of the reserve"
    return "smallest that downscales nothing"


def _context(decision: Decision, policy: Policy) -> Evidence:
    label: Label = "computed"
    reason, exemplar = "the model's own context", ""
    if policy.context_tokens is not None:
        reason, label = "given: --max-model-len", "given"
    elif policy.max_model_len == FIT and decision.longest is not None:
        longest = decision.longest
        exemplar = longest.longest.origin
        reason = f"the smallest that holds the longest prompt: {longest.description}"
        if longest.unknown:
            reason = f"the model's own context: {longest.problems}"
    value = decision.engine_args["max_model_len"]
    return Evidence(
        setting="max_model_len", value=value, label=label, reason=reason, exemplar=exemplar
    )


def _batched(decision: Decision, opened: ModelInfo, policy: Policy, gpu: Gpu | None) -> Evidence:
    value = decision.engine_args["max_num_batched_tokens"]
    budget = decision.budget
    most = max(budget.max_tokens_per_item.values(), default=0)
    largest = decision.table.largest()
    base = opened.serve_defaults["max_num_batched_tokens"]
    label: Label = "computed" if gpu else "assumed"
    exemplar = ""
    if policy.max_num_batched_tokens is not None:
        label, reason = "given", "given: --max-num-batched-tokens"
    elif largest is not None and largest.embeds > most:
        label, exemplar = "computed", largest.exemplar
        reason = f"the encoder cache must hold the largest item, {largest.embeds} tokens; "
        reason += f"rounded up to whole items of {most}, which is what vLLM profiles"
    elif most and value % most == 0 and value != base:
        where = f"on {gpu.name}" if gpu else "on this machine"
        way = "down" if value < base else "up"
        reason = f"vLLM's default {where}, {base}, rounded {way} to whole items of {most} tokens"
        if gpu and way == "down":
            reason += ", which leaves more KV cache than rounded up"
    elif gpu:
        reason = f"vllm serve's default on {gpu.name}"
    else:
        reason = f"vllm serve's default on this machine ({opened.device}); other machines differ"
    return Evidence(
        setting="max_num_batched_tokens", value=value, label=label, reason=reason, exemplar=exemplar
    )
