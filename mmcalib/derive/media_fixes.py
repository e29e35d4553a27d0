"""Fixes that change what media are served, how large they get, or what vLLM profiles of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, assert_never

from mmcalib.derive.facts import Facts
from mmcalib.derive.fixes import Fix, count_of
from mmcalib.derive.frontier import at
from mmcalib.domain.knobs import Knob

# After every length of the context, and after every cap.
LAST: Final = 4

# Tokens per image: 3.2 and 1.0 megapixels for processors with 28 × 28 pixels to a token.
_IMAGE_TOKENS = (4_096, 1_280)
_SHARES = (4, 16)
_TILE_SHARES = (2, 4)
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
    """Caps of one processor option, in the scope that the processor honours."""
    floor = max(knob.companions.values(), default=0)
    values = {price: value for value, price in _caps(knob) if floor <= value < knob.value}
    for level, (price, value) in enumerate(values.items()):
        yield Fix(
            name=f"{knob.name}={value}",
            knob=knob.name,
            changes={"mm_processor_kwargs": dict(at(knob, value).mm_processor_kwargs)},
            cost="quality",
            price=price,
            level=level,
            severity=level,
            alone=level == 0,
        )


def _caps(knob: Knob) -> Iterator[tuple[int, str]]:
    """Values worth a fix, the mildest first, and what each costs the user."""
    match knob.kind:
        case "area":
            yield from ((area, _area_words(knob, area)) for area in _areas(knob))
        case "edge":
            for edge in _parts(knob):
                yield (
                    edge,
                    (
                        f"images are made smaller, to {edge:,} pixels at their longer edge, not "
                        f"{knob.value:,}"
                    ),
                )
        case "tiles":
            for tiles in (int(knob.value) // share for share in _TILE_SHARES):
                if tiles:
                    yield tiles, f"an image is cut into at most {tiles} tiles, not {knob.value}"
        case "crops":
            for crops in dict.fromkeys((*_parts(knob)[:1], 0)):
                most = f"at most {crops} crops" if crops else "no crops"
                instead = f", not {knob.value}" if crops else ""
                yield crops, f"slim images have {most} beside the whole{instead}"
        case "frames":
            # The loader's: how much of a video is looked at is for its owner to say.
            return
        case _:
            assert_never(knob.kind)


def _areas(knob: Knob) -> list[int]:
    """Of an image in tokens, where they follow from it; else shares of what there is."""
    unit = knob.unit_tokens
    if unit is not None and knob.modality == "image":
        return [tokens * unit for tokens in _IMAGE_TOKENS]
    return [int(knob.value) // share for share in _SHARES]


def _area_words(knob: Knob, value: int) -> str:
    if knob.modality == "image":
        return f"images above {value / 1e6:.1f} megapixels are made smaller"
    return f"videos keep 1 pixel in {round(knob.value / value)} of what they may have now"


def _parts(knob: Knob) -> list[int]:
    """The largest of the knob's own steps that is no more than each share."""
    shares = (knob.value // share for share in _TILE_SHARES)
    within = ([int(step) for step in knob.steps if 0 < step <= most] for most in shares)
    return list(dict.fromkeys(max(steps) for steps in within if steps))


def _hints(facts: Facts) -> Iterator[Fix]:
    """One for the modality that is profiled. Never combined: most hints move only the profile."""
    largest = max(facts.largest_items, key=lambda m: (facts.largest_items[m], m), default="")
    if hint := _HINTS.get(largest):
        yield Fix(
            name=f"size hint for {largest}",
            knob="size hint",
            changes={"limit_mm_per_prompt": {largest: dict(hint)}},
            cost="requests",
            price=f"vLLM profiles with a smaller {largest}",
            severity=LAST,
            combines=False,
        )
