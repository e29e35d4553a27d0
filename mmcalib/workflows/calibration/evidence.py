"""Why each setting has its value, in words that stand beside it in every output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mmcalib.derive.effects import Effect
from mmcalib.derive.frontier import Point
from mmcalib.derive.policy import FIT, Policy
from mmcalib.domain.label import Label
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.gpus.gpu import Gpu
from mmcalib.results.calibration import Evidence
from mmcalib.wording import flag, several
from mmcalib.workflows.calibration.cache import cache_evidence
from mmcalib.workflows.decision.decision import Decision


def evidence(
    decision: Decision,
    opened: ModelInfo,
    policy: Policy,
    gpu: Gpu | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Evidence]:
    """One entry per emitted value, in the order of the configuration. `gpu` is the one whose
    defaults `opened` has, `given` are the engine arguments that the user said besides.
    """
    for modality in decision.counts:
        yield from _limit(decision, modality)
    yield from _caps(decision, policy)
    for media, options in policy.media_io_kwargs.items():
        for name, value in options.items():
            yield Evidence(
                setting=f"media_io_kwargs.{media}.{name}",
                value=value,
                label="given",
                reason="given: --media-io-kwargs",
            )
    yield _context(decision, policy)
    yield _batched(decision, opened, policy, gpu)
    if policy.max_num_seqs is not None:
        value = policy.max_num_seqs
        yield Evidence(
            setting="max_num_seqs", value=value, label="given", reason="given: --max-num-seqs"
        )
    if policy.gpu_memory_utilization is not None:
        yield Evidence(
            setting="gpu_memory_utilization",
            value=policy.gpu_memory_utilization,
            label="given",
            reason="given: --gpu-memory-utilization",
        )
    for name, value in given.items():
        yield Evidence(setting=name, value=value, label="given", reason=f"given: {flag(name)}")
    yield from cache_evidence(decision)


def with_effects(entries: Iterable[Evidence], effects: Sequence[Effect]) -> Iterator[Evidence]:
    """Every setting that is emitted, with what switching it off changed (R8)."""
    for entry in entries:
        effect = next((e for e in effects if e.concerns(entry.setting)), None)
        if effect is None:
            yield entry
        elif effect.outcome != "idle":
            yield entry.model_copy(update={"effect": effect.words})


def _limit(decision: Decision, modality: Modality) -> Iterator[Evidence]:
    count = decision.counts[modality]
    name = f"limit_mm_per_prompt.{modality}"
    yield Evidence(
        setting=f"{name}.count" if decision.hints.get(modality) else name,
        value=count.value,
        label=count.label,
        reason=count.reason,
        exemplar=count.exemplar,
    )
    heaviest = decision.table.heaviest(modality)
    if heaviest is None:
        return
    for axis, value in decision.hints.get(modality, {}).items():
        yield Evidence(
            setting=f"{name}.{axis}",
            value=value,
            label="measured",
            reason=f"names the costliest {modality}, {heaviest.shape}: {heaviest.embeds} tokens, "
            "which is what vLLM's dummy costs too",
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
            setting=".".join(knob.place()),
            value=point.value,
            label="given" if capped and not knob.by_loader else "measured",
            reason=f"{_why(point, decision, policy)}; {knob.scale(point.value)}",
            exemplar=largest.exemplar if largest else "",
        )
        for name, value in knob.companions(point.value).items():
            yield Evidence(
                setting=".".join(knob.place(name)),
                value=value,
                label="computed",
                reason=f"the processor's own; it must stand beside {knob.path[-1]}",
            )


def _why(point: Point, decision: Decision, policy: Policy) -> str:
    downscaled = point.items_downscaled
    if point.knob.by_loader:
        return f"the least tried that keeps {policy.min_video_frames} frames of every video"
    if decision.forced and downscaled:
        return f"forced, {several(downscaled, 'item')} downscaled: else {decision.forced}"
    if policy.max_tokens_per_item is not None:
        smaller = several(downscaled, "item")
        return f"--max-tokens-per-item {policy.max_tokens_per_item}: {smaller} downscaled"
    if policy.prefer == "throughput":
        return f"smallest tried that leaves half of the items whole: {downscaled} downscaled"
    return "smallest tried that downscales no item of the corpus"


def _context(decision: Decision, policy: Policy) -> Evidence:
    label: Label = "computed"
    reason, exemplar = "the model's own context", ""
    if policy.context_tokens is not None:
        reason, label = "given: --max-model-len", "given"
    elif policy.max_model_len == FIT and decision.longest is not None:
        longest = decision.longest
        exemplar = longest.longest.origin
        reason = f"the smallest that holds the longest prompt: {longest.parts}"
        if longest.unknown:
            reason = f"the model's own context: {longest.trouble}"
    return Evidence(
        setting="max_model_len",
        value=decision.engine_args["max_model_len"],
        label=label,
        reason=reason,
        exemplar=exemplar,
    )


def _batched(decision: Decision, opened: ModelInfo, policy: Policy, gpu: Gpu | None) -> Evidence:
    value = decision.engine_args["max_num_batched_tokens"]
    budget = decision.budget
    most = max(budget.max_tokens_per_item.values(), default=0)
    largest = decision.table.largest()
    base = opened.serve_defaults["max_num_batched_tokens"]
    label: Label
    if policy.max_num_batched_tokens is not None:
        label, reason, exemplar = "given", "given: --max-num-batched-tokens", ""
    elif largest is not None and largest.embeds > most:
        label, exemplar = "computed", largest.exemplar
        reason = (
            f"the encoder cache must hold the largest item, {largest.embeds} tokens; "
            f"rounded up to whole items of {most}, which is what vLLM profiles"
        )
    elif most and value % most == 0 and value != base:
        label, exemplar = "computed" if gpu else "assumed", ""
        where = f"on {gpu.name}" if gpu else "on this machine"
        way = "down" if value < base else "up"
        reason = f"vLLM's default {where}, {base}, rounded {way} to whole items of {most} tokens"
        if gpu and way == "down":
            reason += ", which leaves more KV cache than rounded up"
    elif gpu:
        label, exemplar = "computed", ""
        reason = f"vllm serve's default on {gpu.name}"
    else:
        label, exemplar = "assumed", ""
        reason = f"vllm serve's default on this machine ({opened.device}); others have others"
    return Evidence(
        setting="max_num_batched_tokens",
        value=value,
        label=label,
        reason=reason,
        exemplar=exemplar,
    )
