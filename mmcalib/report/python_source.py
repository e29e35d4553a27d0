"""Values as Python source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pprint import pformat
from typing import Any

_WIDTH = 88
_INDENT = " " * 4


def dictionary(name: str, values: Mapping[str, Any]) -> str:
    """`name = {...}`, an entry to a line; what is None is left out."""
    entries = "\n".join(_entries(values))
    return f"{name} = {{\n{entries}\n}}\n" if entries else f"{name} = {{}}\n"


def _entries(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if value is not None:
            start = f"{_INDENT}{name!r}: "
            lines = pformat(value, width=_WIDTH - len(start), sort_dicts=False).splitlines()
            yield start + f"\n{' ' * len(start)}".join(lines) + ","
