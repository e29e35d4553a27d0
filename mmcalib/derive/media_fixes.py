"""Fixes that change what media are served, how large they get, or what vLLM profiles of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmcalib.derive.facts import Facts
from mmcalib.derive.fixes import Fix, count_of
from mmcalib.domain.knobs import Knob

# After every length of the context, and after every cap.
LAST: Final = 4
# The knob of a fix that may shrink the profile alone.
SIZE_HINT: Final = "size hint"

# What a size hint would name where nothing is known of the media.
_HINTS: Mapping[str, Mapping[str, int]] = {
    "image": {"width": 1_024, "height": 1_024},
    "video": {"num_frames": 32, "width": 640, "height": 640},
}


def media_fixes(engine_args: Mapping[str, Any], facts: Facts) -> Iterator[Fix]:
    """For the modalities that are served, the mildest level of each knob first."""
    yield from _modalities(engine_args, facts)
    for knob in facts.knobs:
        if knob.modality in facts.largest_items:
            yield from _cap(knob)
    yield from _hints(facts)


def _modalities(args: Mapping[str, Any], facts: Facts) -> Iterator[Fix]:
    served = facts.largest_items
    wanted = {modality for modality in served if count_of(args, modality)}
    kept = "image" if "image" in served else next(iter(served), "")
    for modality in served:
        if modality == kept:
            continue
        yield Fix(
            name=f"no {modality}",
            knob=f"limit {modality}",
            changes={"limit_mm_per_prompt": {modality: 0}},
            cost="requests",
            price=f"no request may carry {modality}",
            severity=1,
            # Whoever has set a limit wants the modality served.
            combines=modality not in wanted,
        )
    several = {m: 1 for m in served if (count_of(args, m) or 2) > 1}
    if several:
        yield Fix(
            name="one item of each modality",
            knob="limits",
            changes={"limit_mm_per_prompt": several},
            cost="requests",
            price="a prompt carries at most one " + ", one ".join(several),
            # vLLM budgets for one item of each, whatever the count (vllm#38459).
            combines=False,
        )
    yield Fix(
        name="language_model_only",
        knob="language_model_only",
        changes={"language_model_only": True},
        cost="requests",
        price="text only: the encoder is not even loaded",
        severity=LAST,
        combines=False,
    )


def _cap(knob: Knob) -> Iterator[Fix]:
    """Lower values of one option, in the scope that the processor honours."""
    values = {price: value for value, price in knob.reductions() if value < knob.value}
    for level, (price, value) in enumerate(values.items()):
        yield Fix(
            name=f"{knob.name}={value}",
            knob=knob.name,
            changes={knob.argument: knob.kwargs(value)},
            cost="quality",
            price=price,
            level=level,
            severity=level,
            alone=level == 0,
        )


def _hints(facts: Facts) -> Iterator[Fix]:
    """One for the modality that is profiled. Never combined: most hints move only the profile."""
    largest = max(facts.largest_items, key=lambda m: (facts.largest_items[m], m), default="")
    if hint := _HINTS.get(largest):
        yield Fix(
            name=f"size hint for {largest}",
            knob=SIZE_HINT,
            changes={"limit_mm_per_prompt": {largest: dict(hint)}},
            cost="requests",
            price=f"vLLM profiles with a smaller {largest}",
            severity=LAST,
            combines=False,
        )
