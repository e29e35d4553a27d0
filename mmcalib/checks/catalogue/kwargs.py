"""Traps of `mm_processor_kwargs`: what is meant for one modality and changes another too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line
from mmcalib.derive.effects import Footprint, ItemOutcome, value_at
from mmcalib.domain.shapes import Modality, Shape

SCOPE = CheckId("{} scope")

KWARGS = "mm_processor_kwargs"
SCOPES: dict[Modality, str] = {
    "image": "images_kwargs",
    "video": "videos_kwargs",
    "audio": "audio_kwargs",
}


def flat(engine_args: Mapping[str, Any]) -> list[str]:
    """Processor options that are written for all modalities at once."""
    return [name for name in engine_args.get(KWARGS) or {} if name not in SCOPES.values()]


def without(engine_args: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arguments less one flat option."""
    rest = {key: value for key, value in engine_args[KWARGS].items() if key != name}
    return {**engine_args, KWARGS: rest}


def scoped(engine_args: Mapping[str, Any], name: str, modality: Modality) -> dict[str, Any]:
    """The arguments with one flat option moved into the scope of one modality."""
    rest = without(engine_args, name)[KWARGS]
    scope = SCOPES[modality]
    inner = {**rest.get(scope, {}), name: value_at(engine_args, (KWARGS, name))}
    return {**engine_args, KWARGS: {**rest, scope: inner}}


def changed(
    with_: Footprint, less: Footprint
) -> dict[Modality, tuple[Shape, ItemOutcome, ItemOutcome]]:
    """Per modality the witness that an option changes most: as it is without it, and with it."""
    found: dict[Modality, tuple[Shape, ItemOutcome, ItemOutcome]] = {}
    for shape, after in with_.items.items():
        before = less.items.get(shape)
        if before is None or before.tokens == after.tokens or before.refusal or after.refusal:
            continue
        best = found.get(shape.modality)
        if best is None or abs(before.tokens - after.tokens) > abs(best[1].tokens - best[2].tokens):
            found[shape.modality] = (shape, before, after)
    return found


def bleeding(
    name: str,
    moved: Mapping[Modality, tuple[Shape, ItemOutcome, ItemOutcome]],
    remedies: Mapping[Modality, Mapping[str, Any]],
) -> Check | None:
    """A flat option that changes several modalities; `remedies` are the arguments that were tried
    and change the one only.
    """
    if len(moved) < 2:
        return None
    cases = "; ".join(
        f"{m} of {shape}: {before.tokens:,} → {after.tokens:,} tokens"
        for m, (shape, before, after) in moved.items()
    )
    lines = [f"{line(KWARGS, args[KWARGS])}  # for {m} alone" for m, args in remedies.items()]
    return Check(
        SCOPE.of(name),
        "warn",
        f"{name} is written flat and changes {' and '.join(moved)}: {cases}",
        "\n".join(lines),
    )
