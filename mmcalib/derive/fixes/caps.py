"""Smaller items: lower values of what the processor caps them by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed
from mmcalib.domain.knobs import Knob
from mmcalib.domain.media_option import Value


def _caps(unfixed: Unfixed) -> Iterator[Fix]:
    for knob in unfixed.facts.knobs:
        if knob.modality in unfixed.facts.largest_items:
            yield from _cap(knob, _configured(knob, unfixed.engine_args))


def _configured(knob: Knob, engine_args: Mapping[str, Any]) -> Value:
    """The value that the arguments set, else the processor's default."""
    found: Any = engine_args
    for key in knob.place():
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else knob.value


def _cap(knob: Knob, now: Value) -> Iterator[Fix]:
    """Lower values of one option, in the scope that the processor honours."""
    values = {price: value for value, price in knob.reductions() if value < now}
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
            shrinks=knob.modality,
        )


RULES = (FixRule(40, _caps),)
