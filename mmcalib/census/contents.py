"""Which items are equal to the byte, whatever they are called."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmcalib.census.executor import Named, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.domain.items import Item, without_data
from mmcalib.progress import Progress, Silent
from mmcalib.storage.location import Location, open_item
from mmcalib.text import MIB

_BLOCK_BYTES = MIB
_DIGEST = Named("mmcalib.census.contents", "digest")


@dataclass(slots=True)
class Contents:
    """The items that were counted; memory grows with their number."""

    _items: dict[Item, None] = field(default_factory=dict)

    def add(self, item: Item) -> None:
        self._items[without_data(item)] = None

    def distinct(self, progress: Progress | None = None) -> int:
        """How many of them differ in content."""
        return len(set(first_of_each_content(list(self._items), progress or Silent())))


def first_of_each_content(items: Sequence[Item], progress: Progress) -> list[int]:
    """Per item the index of the first that is equal to it, itself where none before it is.

    Files that are not told apart by their sizes are read whole. What cannot be read is equal to
    nothing.
    """
    first = list(range(len(items)))
    by_size: defaultdict[object, list[int]] = defaultdict(list)
    identities: dict[int, object] = {}
    for index, item in enumerate(items):
        if item.held is not None:
            identities[index] = item.path
            by_size[item.declared, item.held.size_bytes].append(index)
            continue
        try:
            status = os.stat(item.path)
        except (OSError, ValueError):
            continue
        identities[index] = (status.st_dev, status.st_ino)
        by_size[item.declared, status.st_size].append(index)
    unsure = [indices for indices in by_size.values() if len(indices) > 1]
    if not unsure:
        return first
    digests: dict[object, str] = {}
    with (
        progress.step("comparing files of equal size", sum(map(len, unsure))) as task,
        LocalPool(_DIGEST) as apart,
    ):
        for indices in unsure:
            new = {identities[i]: items[i] for i in indices if identities[i] not in digests}
            digests.update(zip(new, _digests(list(new.values()), apart), strict=True))
            found: dict[str, int] = {}
            for index in indices:
                if one := digests[identities[index]]:
                    first[index] = found.setdefault(one, index)
            task.advance(len(indices))
    return first


def _digests(items: Sequence[Item], apart: LocalPool) -> list[str]:
    """Of files here; what must be unpacked first is read where that has a bound."""
    packed = [ProbeTask(item) for item in items if not Location.of(item.path).is_file]
    answers = iter(apart.result(apart.submit(packed)) if packed else ())
    return [
        digest(item) if Location.of(item.path).is_file else _hexadecimal(next(answers).line)
        for item in items
    ]


def _hexadecimal(line: str) -> str:
    """Empty for an item that could not be read in its time."""
    return "" if line.startswith("[") else line


def digest(item: Item) -> str:
    """Of all its bytes; empty where they cannot be read."""
    found = hashlib.blake2b()
    try:
        with open_item(item) as opened:
            while block := opened.file.read(_BLOCK_BYTES):
                found.update(block)
    except (OSError, ValueError, EOFError):
        return ""
    return found.hexdigest()
