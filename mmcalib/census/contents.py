"""Find items with equal bytes under different names."""

from __future__ import annotations

import hashlib
import io
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

from mmcalib.census.executor import FunctionRef, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.domain.items import Item
from mmcalib.progress import Progress
from mmcalib.storage.location import Location, open_item

_DIGEST = FunctionRef("mmcalib.census.contents", "digest")


def find_first_equal(items: Sequence[Item], progress: Progress) -> list[int]:
    """Return for each item the index of the first item with equal bytes, possibly its own.

    Reads files of equal size whole. An unreadable file equals no other.
    """
    first = list(range(len(items)))
    by_size: defaultdict[object, list[int]] = defaultdict(list)
    identities: dict[int, object] = {}
    for index, item in enumerate(items):
        if item.byte_source is not None:
            identities[index] = item.path
            by_size[item.declared, item.byte_source.size_bytes].append(index)
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
        LocalPool(_DIGEST) as pool,
    ):
        for indices in unsure:
            new = {identities[i]: items[i] for i in indices if identities[i] not in digests}
            digests.update(zip(new, _digests(list(new.values()), pool), strict=True))
            first_of: dict[str, int] = {}
            for index in indices:
                if one := digests[identities[index]]:
                    first[index] = first_of.setdefault(one, index)
            task.advance(len(indices))
    return first


def _digests(items: Sequence[Item], pool: LocalPool) -> list[str]:
    """Hash files here, but archives' members in the pool, which limits time and memory."""
    packed = [ProbeTask(item) for item in items if not Location.of(item.path).is_file]
    lines = iter([one.line for one in pool.result(pool.submit(packed))] if packed else ())
    all_lines = (digest(i) if Location.of(i.path).is_file else next(lines) for i in items)
    return ["" if line.startswith("[") else line for line in all_lines]


def digest(item: Item) -> str:
    """Hash all bytes of an item; empty if they cannot be read."""
    try:
        with open_item(item) as opened:
            file = cast("io.BufferedReader", opened.file)
            return hashlib.file_digest(file, hashlib.blake2b).hexdigest()
    except (OSError, ValueError, EOFError):
        return ""
