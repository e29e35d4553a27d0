"""What PYTORCH_ALLOC_CONF and vLLM set of torch's caching allocator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mmcalib.child.rehearsal.device.allocator import LARGE_SEGMENT_BYTES
from mmcalib.errors import UsageError
from mmcalib.text import MIB

# The second is the name that torch had before 2.9, which most servers still set; the first wins.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_CHANGES_THE_RULES = (
    *("large_segment_size_mb", "max_non_split_rounding_mb", "roundup_power2_divisions"),
    *("garbage_collection_threshold", "backend"),
)


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """`max_split_bytes` is None for no limit, `expandable` where a text does not say."""

    max_split_bytes: int | None = None
    expandable: bool | None = None


def parse_settings(text: str) -> AllocatorSettings:
    """What a text sets, as torch's `AcceleratorAllocatorConfig::parseArgs`: one without
    `max_split_size_mb` lifts the limit, one without `expandable_segments` leaves that as it is.

    Raises UsageError where the text cannot be meant, or changes rules that are not replayed.
    """
    limit, expandable = None, None
    # Commas also part the members of a list in brackets.
    for piece in filter(None, map(str.strip, re.split(r",(?![^\[]*\])", text))):
        key, _, value = (part.strip() for part in piece.partition(":"))
        if key == "max_split_size_mb":
            if not value.isdigit() or int(value) * MIB < LARGE_SEGMENT_BYTES:
                raise UsageError(f"{piece!r}: torch wants a whole number of at least 20")
            limit = int(value) * MIB
        elif key == "expandable_segments":
            if value not in ("True", "False"):
                raise UsageError(f"{piece!r}: torch wants True or False")
            expandable = value == "True"
        elif key in _CHANGES_THE_RULES and (key, value) != ("backend", "native"):
            raise not_followed(piece)
    return AllocatorSettings(limit, expandable)


def not_followed(piece: str) -> UsageError:
    """The error for a setting that a rehearsal does not know the rules of."""
    return UsageError(
        f"a rehearsal cannot follow torch's memory allocator with {piece!r}",
        hint="unset PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF for the rehearsal",
    )


def given_settings(environment: Mapping[str, str]) -> AllocatorSettings:
    """Those that torch starts with. Raises UsageError as `parse_settings` does."""
    texts = (environment[name] for name in VARIABLES if name in environment)
    return parse_settings(next(texts, ""))
