"""Where items and prompts come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import CorpusError


def at_least_one(found: Iterable[Item | Skipped], nothing: CorpusError) -> Iterator[Item | Skipped]:
    """All that was found. Raises `nothing`, at the end, when nothing was."""
    empty = True
    for one in found:
        empty = False
        yield one
    if empty:
        raise nothing


class Source(Protocol):
    """Media files, requests that name them, or both; each call starts over, in the same order."""

    def items(self) -> Iterator[Item | Skipped]:
        """Every media file once, and every file that cannot be one."""
        ...

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Every request; `Skipped.path` is the request's origin. Empty without requests."""
        ...
