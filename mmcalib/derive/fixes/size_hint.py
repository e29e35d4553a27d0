"""A hint of how large items are, which vLLM profiles with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from mmcalib.derive.fix import LAST, Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed

# The knob of a fix that may shrink the profile alone.
SIZE_HINT: Final = "size hint"

# What a size hint would name where nothing is known of the media.
_HINTS: Mapping[str, Mapping[str, int]] = {
    "image": {"width": 1_024, "height": 1_024},
    "video": {"num_frames": 32, "width": 640, "height": 640},
}


def _hint(unfixed: Unfixed) -> Iterator[Fix]:
    """One for the modality that is profiled. Never combined: most hints move only the profile."""
    items = unfixed.facts.largest_items
    largest = max(items, key=lambda m: (items[m], m), default="")
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


RULES = (FixRule(50, _hint),)
