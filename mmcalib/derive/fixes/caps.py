"""Smaller items: lower values of what the processor caps them by."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed
from mmcalib.domain.knobs import Knob


def _caps(unfixed: Unfixed) -> Iterator[Fix]:
    for knob in unfixed.facts.knobs:
        if knob.modality in unfixed.facts.largest_items:
            yield from _cap(knob)


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
            shrinks=knob.modality,
        )


RULES = (FixRule(40, _caps),)
