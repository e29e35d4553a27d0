"""Traps of `limit_mm_per_prompt`: what is left out of it, misspelt in it, or more than fits."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.census.shapes import MODALITIES, Modality
from mmcalib.derive.checks import Check
from mmcalib.derive.limits import Count
from mmcalib.derive.traps.spelling import line
from mmcalib.engine.messages import Budget, Knob, ModelOpened

LIMIT = "limit_mm_per_prompt"
PROMPTS_FIT = "prompts fit"
# vLLM's limit of a modality that nobody has set (vllm/config/multimodal.py).
UNSAID = 999

_SIZES = {
    "image": ("width", "height"),
    "video": ("num_frames", "width", "height"),
    "audio": ("length",),
}


def counts(engine_args: Mapping[str, Any], opened: ModelOpened) -> dict[Modality, Count]:
    """How many items of each modality of the model one prompt may carry under these arguments."""
    limits = engine_args.get(LIMIT) or {}
    found: dict[Modality, Count] = {}
    for modality, most in opened.modalities.items():
        value, reason = options(limits, modality).get("count", UNSAID), "the configuration says so"
        if modality not in limits:
            value, reason = UNSAID, "nothing is said: vLLM's own limit"
        if most is not None and value > most:
            value, reason = most, "the model takes no more"
        if engine_args.get("language_model_only"):
            value, reason = 0, "language_model_only"
        found[modality] = Count(value, reason, "given")
    return found


def options(limits: Mapping[str, Any], modality: str) -> dict[str, Any]:
    """Count and size hint of one modality, as a mapping."""
    value = limits.get(modality)
    if isinstance(value, Mapping):
        return {name: inner for name, inner in value.items() if inner is not None}
    return {} if value is None else {"count": value}


def hint(limits: Mapping[str, Any], modality: str) -> dict[str, int]:
    """Only the size hint of one modality."""
    return {n: v for n, v in options(limits, modality).items() if n in _SIZES.get(modality, ())}


def unhinted(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments with counts and no size hints."""
    limits = engine_args.get(LIMIT) or {}
    plain = {m: options(limits, m).get("count", UNSAID) for m in limits}
    return {**engine_args, LIMIT: plain} if limits else dict(engine_args)


def limit_findings(engine_args: Mapping[str, Any], opened: ModelOpened) -> Iterator[Check]:
    """Names in `limit_mm_per_prompt` that mean nothing to this model."""
    limits = engine_args.get(LIMIT) or {}
    takes = ", ".join(opened.modalities)
    for modality in limits:
        if modality in opened.modalities:
            yield from _misspelt(limits, modality)
            continue
        if options(limits, modality).get("count") == 0 and modality in MODALITIES:
            continue
        near = difflib.get_close_matches(modality, list(opened.modalities), n=1)
        remedy = f"remove it from {LIMIT.replace('_', '-')}"
        if near:
            remedy = line(LIMIT, {near[0]: limits[modality]})
        yield Check(
            f"limit of {modality}",
            "fail" if near else "warn",
            f"the model takes {takes}: vLLM ignores a limit of {modality} without a word",
            remedy,
        )


def _misspelt(limits: Mapping[str, Any], modality: str) -> Iterator[Check]:
    known = ("count", *_SIZES.get(modality, ()))
    for name in options(limits, modality):
        if name not in known:
            yield Check(
                f"limit of {modality}: {name}",
                "warn",
                f"vLLM ignores {name} without a word: {modality} has {', '.join(known)}",
                line(LIMIT, {modality: {n: v for n, v in options(limits, modality).items()
                                        if n in known}}),
            )  # fmt: skip


def unwritten(
    engine_args: Mapping[str, Any],
    opened: ModelOpened,
    budget: Budget,
    without: Budget | None,
    gain: str,
) -> Iterator[Check]:
    """A modality that nobody limits has vLLM's limit of 999. `without` is the budget if the one of
    them that sets the budget were 0, None where that would leave nothing or none of them sets it;
    `gain` says what that brings in memory.
    """
    limits = engine_args.get(LIMIT) or {}
    missing = [m for m in opened.modalities if m not in limits]
    if not missing or engine_args.get("language_model_only"):
        return
    largest = {m: budget.max_tokens_per_item.get(m, 0) for m in missing}
    each = "; ".join(f"one {m} may take {tokens:,} tokens" for m, tokens in largest.items())
    detail = f"{', '.join(missing)} not limited, so up to {UNSAID} in a prompt: {each}"
    known = {m: limits.get(m, 1) for m in opened.modalities}
    remedy = f"{line(LIMIT, known)}, or as many as you serve"
    worst = budget.profiled_modality
    if worst in missing:
        detail += f"; {worst} sets the encoder budget of {budget.encoder_budget_tokens:,} tokens"
        if without is not None:
            detail += f", {without.encoder_budget_tokens:,} with {worst}: 0{gain}"
            remedy = f"{line(LIMIT, {**known, worst: 0})} where no {worst} is served"
    yield Check("every modality limited", "warn", detail, remedy)


def prompt_fits(
    served: Mapping[Modality, Count],
    engine_args: Mapping[str, Any],
    budget: Budget,
    knobs: tuple[Knob, ...],
    reserve_tokens: int,
) -> Check | None:
    """Whether a prompt of as many of the largest items as the limits name fits the context; None
    where they name none.
    """
    limits = engine_args.get(LIMIT) or {}
    most = {
        m: (served[m].value, budget.max_tokens_per_item[m])
        for m in served
        if m in limits and served[m].value and m in budget.max_tokens_per_item
    }
    if not most:
        return None
    tokens = sum(count * each for count, each in most.values())
    items = ", ".join(f"{count} × {m} of {each:,} tokens" for m, (count, each) in most.items())
    room = budget.max_model_len
    detail = (
        f"a prompt of {items} takes {tokens:,}, with {reserve_tokens:,} for text "
        f"{tokens + reserve_tokens:,}; max_model_len {room:,}"
    )
    if tokens + reserve_tokens <= room:
        return Check(PROMPTS_FIT, "pass", detail)
    modality = max(most, key=lambda m: most[m][0] * most[m][1])
    count, each = most[modality]
    left = room - reserve_tokens - (tokens - count * each)
    remedies = []
    if left >= each:
        remedies.append(line(LIMIT, {**limits, modality: _counted(limits, modality, left // each)}))
    # Of videos the unit is that of a frame.
    knob = next((k for k in knobs if k.modality == modality == "image" and k.unit_tokens), None)
    if knob is not None and left // count > 0:
        remedies.append(f"{line_of(knob, left // count)} ({left // count:,} tokens each)")
    remedies += ["--data DIR judges by your own media"]
    return Check(
        PROMPTS_FIT, "warn", f"{detail}: vLLM rejects such a prompt", " or ".join(remedies)
    )


def line_of(knob: Knob, tokens: int) -> str:
    """The line of YAML that caps items at so many tokens each."""
    return line(knob.argument, cap(knob, tokens))


def cap(knob: Knob, tokens: int) -> dict[str, Any]:
    """What caps items at so many tokens, in the spelling that this model's processor has."""
    unit = knob.unit_tokens or 1
    inner: Any = {**knob.companions, knob.path[-1]: tokens * unit}
    for name in reversed(knob.path[:-1]):
        inner = {name: inner}
    return dict(inner)


def _counted(limits: Mapping[str, Any], modality: str, count: int) -> Any:
    kept = hint(limits, modality)
    return {"count": count, **kept} if kept else count
