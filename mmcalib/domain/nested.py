"""Mappings within mappings, as vLLM's processor kwargs are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """`new` on top of `old`, mappings within mappings too; neither is changed."""
    both = dict(old or {})
    for name, value in new.items():
        before = both.get(name)
        nested = isinstance(before, Mapping) and isinstance(value, Mapping)
        both[name] = merged(before, value) if nested else value
    return both
