"""Fewer modalities, and fewer items of each."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import LAST, Fix, count_of
from mmcalib.derive.fix_rule import FixRule, Unfixed


def _modalities(unfixed: Unfixed) -> Iterator[Fix]:
    args, served = unfixed.engine_args, unfixed.facts.largest_items
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


RULES = (FixRule(30, _modalities),)
