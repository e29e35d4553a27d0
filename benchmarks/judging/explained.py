"""Disagreements that stay, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Pattern of the cause → why it is so.
REASONS: Sequence[tuple[str, str]] = ()


def explained(cause: str) -> str:
    """Empty where nothing explains it."""
    return next((why for pattern, why in REASONS if re.search(pattern, cause)), "")
