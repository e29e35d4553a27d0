"""Checks of the memory reserve: vLLM's startup profile against the worst step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import Check, RemedyStyle, Status, yaml_line
from mmcalib.checks.facts import CheckFacts, JudgedConfig
from mmcalib.domain.memory import Budget, Dummy, RehearsedMemory, floor_utilization
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.limits.demand import Demand, LanguageStep, MergeStep, PromptsStep, Shortfall, WorstStep
from mmcalib.limits.values import LIMIT, limit_options, size_hint
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.text import gib

_FLAGS = (
    "--max-num-batched-tokens a multiple of the largest item, more --max-num-seqs, another "
    "--max-tokens-per-item, or --allow-under-reserve"
)
_LINES = "a smaller max-num-batched-tokens, or a cap in mm-processor-kwargs"


def embeddings_only_check(budget: Budget) -> Check | None:
    """The check for a server of embeddings only, which vLLM does not profile; else None."""
    if budget.max_tokens_per_item or not budget.encoder_budget_tokens:
        return None
    detail = f"clients send only embeddings: up to {budget.encoder_cache_size:,} tokens stay in "
    detail += "the encoder cache, and vLLM's startup profile includes none"
    return Check(ids.MEMORY_RESERVE, "warn", detail)


# Smaller workspaces are not mentioned: cuBLAS keeps tens of MiB.
_NOTABLE_BYTES: Final = 64 << 20


def reserved_bytes_check(
    short: Shortfall | None,
    after: RehearsedMemory | None,
    config: JudgedConfig,
    remedies: Sequence[str] = (),
    *,
    allowed: bool = False,
) -> Check | None:
    """Check the reserve in bytes; None if a step was not rehearsed.

    Warns if the step exceeds the reserve and fits in what stays free outside it. Fails if not, or
    if a setting shrinks the profile and not the step.
    """
    if short is None or after is None:
        return None
    worst = short.worst
    names = (worst.exemplar,) if isinstance(worst, WorstStep) and worst.exemplar else ()
    profiled = gib(short.reserved_bytes - short.spare_bytes)
    detail = f"{_describe(worst)}; the profile reserves {profiled}, rehearsed"
    if short.spare_bytes:
        detail += f", and {gib(short.spare_bytes)} are free beside the KV cache"
    # What does not start leaves no memory to divide.
    if short.passes and short.is_tight and after.kv_cache_tokens is not None:
        detail += f"; gpu_memory_utilization leaves {gib(short.outside_bytes)} for the CUDA "
        detail += "context, fragmentation and kernels, too little under load"
        # Room for vLLM's own slack.
        room = after.requested_bytes + after.outside_bytes - VLLM_SLACK_BYTES
        remedy = f"--gpu-memory-utilization {floor_utilization(room, short.total_bytes):g}"
        return Check(ids.MEMORY_RESERVE, "warn", detail, remedy, names)
    if short.passes:
        beyond = short.nbytes >> 20
        detail += f"; {beyond} MiB more fit in vLLM's own slack" if beyond > 0 else ""
        return Check(ids.MEMORY_RESERVE, "pass", detail, names=names)
    args = config.engine_args
    hinted = any(size_hint(args.get(LIMIT) or {}, modality) for modality in MODALITIES)
    made = (hinted or args.get("skip_mm_profiling")) and not config.adequacy.passes
    if short.holds and not made:
        detail += f"; vLLM does not reserve {gib(short.unreserved_bytes or short.nbytes)} of it"
        detail += f"{_owner(worst, after)}, and the start leaves {gib(short.outside_bytes)} free "
        detail += "outside its reserve, where it fits"
        remedy = "keep that memory free of other processes"
        return Check(ids.MEMORY_RESERVE, "warn", detail, remedy, names)
    needed = gib(after.requested_bytes + short.nbytes)
    other = f"a GPU with {needed} for vLLM, a smaller --max-tokens-per-item or "
    other += "--max-num-batched-tokens"
    budget = config.budget
    if 2 * budget.max_tokens_per_item.get("video", 0) > budget.max_model_len:
        # vLLM's largest video fills the context.
        other = f"a smaller --max-model-len, {other}"
    detail = f"under-reserved by {gib(short.nbytes)}: {detail}; out of memory under load"
    remedy = f"{', or '.join(remedies) or other}, or --allow-under-reserve"
    return Check(ids.MEMORY_RESERVE, "warn" if allowed else "fail", detail, remedy, names)


def _owner(worst: Demand, after: RehearsedMemory) -> str:
    """Say what takes memory that no profile of vLLM includes; empty for items themselves."""
    if isinstance(worst, PromptsStep):
        return " (states and scratch of recurrent layers, vllm#52872)"
    if not isinstance(worst, WorstStep) or not worst.kept_bytes:
        return ""
    flashinfer = "FLASHINFER" in after.attention
    return " (FlashInfer's workspace)" if flashinfer else " (workspaces of kernels)"


def _describe(demand: Demand) -> str:
    parts = []
    if held := demand.resident.nbytes:
        parts.append(f"{demand.resident.tokens:,} tokens in the encoder cache ({gib(held)})")
    if isinstance(demand, WorstStep) and demand.kept_bytes >= _NOTABLE_BYTES:
        parts.append(f"{gib(demand.kept_bytes)} of kernels' workspaces")
    more = f" beside {' and '.join(parts)}" if parts else ""
    match demand:
        case WorstStep(items=items) if items:
            like = f"{items:,} items such as {demand.exemplar}, {demand.tokens:,} tokens of"
            what = f"the costliest step, {like} {demand.modality},"
        case WorstStep():
            what = f"the costliest step, {demand.tokens:,} tokens of {demand.modality},"
        case LanguageStep():
            what = f"the language model's step of {demand.tokens:,} tokens"
        case PromptsStep(prompts=prompts):
            of = "one prompt" if prompts == 1 else f"{prompts:,} prompts"
            what = f"the language model's step of {demand.tokens:,} tokens of {of}, as served,"
        case MergeStep():
            what = f"the merge of {demand.tokens:,} tokens into the text"
    return f"{what} takes {gib(demand.peak_bytes)}{more}"


_UNKNOWN: Final = (
    "the bytes are unknown for padded or tiled items, for cached items that keep their batch, for "
    "their merge, and for the language model with a full cache"
)


@dataclass(frozen=True, slots=True)
class Unrehearsed:
    """Why nothing was rehearsed, and the command that rehearses it."""

    why: str
    settles: str


def no_gpu(command: str) -> Unrehearsed:
    """For a job without --gpu; `command` is the same job with `--gpu NAME`."""
    return Unrehearsed("--gpu was not given", f"{command} rehearses it, without a GPU")


def qualify_tokens_only(
    checks: Iterable[Check], decision: JudgedConfig, unrehearsed: Unrehearsed
) -> list[Check]:
    """The checks, with a warning if the reserve passes in tokens only, which decides no verdict."""
    found = list(checks)
    for place, check in enumerate(found):
        if check.id == ids.MEMORY_RESERVE and decision.budget.encoder_budget_tokens:
            why = f"only tokens were compared, because {unrehearsed.why}; {_UNKNOWN}"
            found[place] = replace(
                check,
                status="warn" if check.status == "pass" else check.status,
                detail=f"{check.detail}; {why}",
                remedy=check.remedy or unrehearsed.settles,
            )
    return found


def check_skipped_profile(facts: CheckFacts) -> Iterator[Check]:
    """Fail for `skip_mm_profiling`, which reserves nothing for the encoder."""
    judged, short = facts.configuration, facts.tries.short
    if not judged.engine_args.get("skip_mm_profiling"):
        return
    size, lower = "", ""
    if short is not None:
        share = floor_utilization(short.requested_bytes - max(0, short.nbytes), short.total_bytes)
        size = f" and take {gib(short.worst.nbytes)}"
        lower = f", or {yaml_line('gpu_memory_utilization', share)}"
    detail = "skip_mm_profiling: vLLM reserves nothing for the encoder and gives that memory to "
    detail += f"the KV cache. One step may encode {judged.adequacy.worst_step_tokens:,} "
    detail += f"tokens{size}"
    yield Check(ids.ENCODER_RESERVE, "fail", detail, f"remove skip-mm-profiling{lower}")


def unprofiled_encoder_check(release: str) -> Check:
    detail = f"vLLM {release} does not profile the encoder, so it reserves nothing for it"
    return Check(ids.ENCODER_RESERVE, "warn", detail, "a lower --gpu-memory-utilization makes room")


def check_reserved_tokens(facts: CheckFacts) -> Iterator[Check]:
    """Check the reserve in tokens."""
    judged, dialect = facts.configuration, facts.dialect
    alone = embeddings_only_check(judged.budget) if dialect is RemedyStyle.LINES else None
    if alone is not None:
        yield alone
        return
    found, number = judged.adequacy, dialect.number
    detail = f"vLLM's startup profile encodes {number(found.profiled_tokens)} tokens, one step at "
    detail += f"most {number(found.worst_step_tokens)}{found.clip_suffix}: {found.ratio:.2f}"
    if found.passes:
        yield Check(ids.MEMORY_RESERVE, "pass", detail)
        return
    media = judged.budget.profiled_modality or "media"
    load = dialect.choose(flags="load", lines=f"load of {media}")
    detail = f"under-reserved: {detail}; the engine starts and may run out of memory under {load}"
    remedy = "\n".join(facts.tries.remedies) or dialect.choose(flags=_FLAGS, lines=_LINES)
    status: Status = "warn" if facts.policy.allow_under_reserve else "fail"
    yield Check(ids.MEMORY_RESERVE, status, detail, remedy)


def check_written_hints(facts: CheckFacts) -> Iterator[Check]:
    """Check each size hint: whether vLLM uses it, and what it shrinks."""
    limits = facts.configuration.engine_args.get(LIMIT) or {}
    (reserved,) = check_reserved_tokens(facts)
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
    detail = f"{asked}: above vLLM's own largest {modality} ({takes}), so vLLM ignores it. A size "
    detail += "hint can only shrink the profiled item"
    remedy = yaml_line(LIMIT, {**limits, modality: value})
    yield Check(ids.HINT_MAXIMUM.of(modality), "warn", detail, remedy)


def _check_shrunk_hint(facts: CheckFacts, modality: Modality, dummy: Dummy, remedy: str) -> Check:
    """Fail for a hint that shrinks the profile but not the items that vLLM admits."""
    name, limits = ids.SIZE_HINT.of(modality), facts.configuration.engine_args[LIMIT]
    budget, plain = facts.configuration.budget, facts.configuration.plain
    size = ", ".join(f"{axis} {value:,}" for axis, value in size_hint(limits, modality).items())
    most, before = budget.max_tokens_per_item[modality], plain.max_tokens_per_item[modality]
    if dummy.embeds < most:
        detail = f"{size}: the profiled {modality} shrinks to {dummy.embeds:,} tokens, but vLLM "
        detail += f"still admits {most:,}"
        if budget.profiled_modality != modality:
            other = budget.profiled_modality
            return Check(name, "warn", f"{detail}; no effect here, as vLLM profiles {other}")
        return Check(name, "fail", f"{detail}; the difference is not reserved", remedy)
    if most < before and budget.encoder_budget_tokens < before:
        detail = f"{size}: one {modality} takes at most {most:,} tokens instead of {before:,}"
        detail = f"{detail}. vLLM rejects one that exceeds the encoder cache of "
        detail += f"{budget.encoder_budget_tokens:,} tokens (HTTP 400)"
        return Check(name, "warn", detail, "--data DIR checks your own media")
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
