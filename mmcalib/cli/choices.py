"""The names that an option takes, in words."""

from __future__ import annotations

from collections.abc import Sequence


def either(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def none_of(names: Sequence[str]) -> str:
    """What another name is: `neither a nor b`, `none of a, b, c`."""
    return (
        f"neither {names[0]} nor {names[1]}" if len(names) == 2 else f"none of {', '.join(names)}"
    )
