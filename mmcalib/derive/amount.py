"""Counts as vLLM's own parser reads them: 32k is 32000, 32K is 32768."""

from __future__ import annotations

import re

_TIMES = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
_AMOUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kmKM]?)", re.ASCII)


def amount(text: str) -> float | None:
    """None for what is no such count."""
    match = _AMOUNT.fullmatch(text)
    return float(match[1]) * _TIMES[match[2]] if match else None
