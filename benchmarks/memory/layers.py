"""Names of a checkpoint's layers, of which the table of cases writes down one for all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# `{0..39}` in a name stands for each of these numbers.
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def written_out(value: Any) -> Any:
    """The value with every name written out that has a range of numbers in it; deep."""
    if not isinstance(value, dict):
        return value
    return {name: written_out(under) for key, under in value.items() for name in _names(key)}


def _names(key: str) -> Iterator[str]:
    found = _RANGE.search(key)
    if found is None:
        yield key
        return
    first, last = map(int, found.groups())
    for number in range(first, last + 1):
        yield from _names(f"{key[: found.start()]}{number}{key[found.end() :]}")
