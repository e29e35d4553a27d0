"""Give the reason for each setting's value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mmcalib.checks.facts import Decision
from mmcalib.checks.options import cache_reason
from mmcalib.domain.knobs import Label
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.limits.effects import Effect
from mmcalib.limits.frontier import Point
from mmcalib.limits.policy import FIT, Policy
from mmcalib.limits.processor_cache import SizedCache, UnsizedCache
from mmcalib.limits.values import CACHE
from mmcalib.models.gpus import Gpu
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.results.calibration import Evidence, ProcessorCache
from mmcalib.text import GIB, flag, plural

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
        reason=cache_reason(cache),
        exemplar=cache.often if isinstance(cache, SizedCache) and cache.times > 1 else "",
    )


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
    most = max(decision.budget.max_tokens_per_item.values(), default=0)
    largest = decision.table.largest()
    base = opened.serve_defaults["max_num_batched_tokens"]
    label: Label = "computed" if gpu else "assumed"
    where, exemplar, wanted = f"on {gpu.name}" if gpu else "on this machine", "", base
    if largest is not None and largest.embeds > max(most, base):
        label, exemplar, wanted = "computed", largest.exemplar, largest.embeds
    if policy.max_num_batched_tokens is not None:
        label, reason = "given", "given: --max-num-batched-tokens"
    elif value == base:
        reason = f"vllm serve's default {where}"
        reason += "" if gpu else f" ({opened.device}); other machines differ"
    else:
        reason = f"vLLM's default {where}, {base}"
        if wanted != base:
            reason = f"the encoder cache must hold the largest item, {wanted} tokens"
        way = "down" if value < wanted else "up"
        reason += f", rounded {way} to whole items of {most} tokens" if value != wanted else ""
        reason += ", which leaves more KV cache than rounded up" if gpu and way == "down" else ""
    return Evidence(
        setting="max_num_batched_tokens", value=value, label=label, reason=reason, exemplar=exemplar
    )
