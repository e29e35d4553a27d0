"""Where items and prompts come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mmcalib.corpus.item import Item, Prompt, Skipped


class Source(Protocol):
    """Media files, requests that name them, or both; each call starts over, in the same order."""

    def items(self) -> Iterator[Item | Skipped]:
        """Every media file once, and every file that cannot be one."""
        ...

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Every request; `Skipped.path` is the request's origin. Empty without requests."""
        ...
