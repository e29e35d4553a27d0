"""Traps of `mm_processor_kwargs`: what is meant for one modality and changes another too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.checks.catalogue.limits import LIMIT
from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line
from mmcalib.derive.effects import Effect, Footprint, Taken, sizes, value_at
from mmcalib.domain.shapes import Modality, Shape

HAS_EFFECT = CheckId("{} has effect")
SETTINGS_EFFECT = CheckId("settings have effect")
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


def changed(with_: Footprint, less: Footprint) -> dict[Modality, tuple[Shape, Taken, Taken]]:
    """Per modality the witness that an option changes most: as it is without it, and with it."""
    found: dict[Modality, tuple[Shape, Taken, Taken]] = {}
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
    moved: Mapping[Modality, tuple[Shape, Taken, Taken]],
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
    lines = [f"for {m} alone {line(KWARGS, args[KWARGS])}" for m, args in remedies.items()]
    return Check(
        SCOPE.of(name),
        "warn",
        f"{name} is written flat and changes {' and '.join(moved)}: {cases}",
        " or ".join(lines),
    )


def effect_checks(effects: list[Effect]) -> Iterator[Check]:
    """R8: settings that do nothing, each by name; the others in one line. Size hints have findings
    of their own.
    """
    idle = [e for e in effects if e.outcome == "idle" and not sizes(e.path)]
    for effect in idle:
        yield Check(HAS_EFFECT.of(effect.name), "warn", effect.words, "remove it")
    named: dict[str, list[str]] = {}
    for effect in effects:
        stated = effect.outcome == "stated" and effect.path[0] == LIMIT
        named.setdefault("bounds" if stated else effect.outcome, []).append(effect.name)
    said = (
        ("moves", "switched off once each, these move tokens, budget or bytes: "),
        ("bounds", "these only bound what a prompt may carry: "),
        ("stated", "these only state what vLLM has by default here: "),
        ("not shown", "of these tokens and budget show nothing: "),
    )
    words = "; ".join(text + ", ".join(named[key]) for key, text in said if key in named)
    if words:
        yield Check(SETTINGS_EFFECT, "pass", words)
