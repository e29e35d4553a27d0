"""Which items are equal to the byte, whatever they are called."""

from __future__ import annotations

import hashlib
import io
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

from mmcalib.census.executor import Named, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.domain.items import Item
from mmcalib.progress import Progress
from mmcalib.storage.location import Location, open_item

_DIGEST = Named("mmcalib.census.contents", "digest")


def first_of_each_content(items: Sequence[Item], progress: Progress) -> list[int]:
    """Per item the index of the first that is equal to it, itself where none before it is.

    Files of equal size are read whole; what cannot be read is equal to nothing.
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
    """Digests of items: here for files, in the pool, within its limits, for what is packed."""
    packed = [ProbeTask(item) for item in items if not Location.of(item.path).is_file]
    lines = iter([one.line for one in apart.result(apart.submit(packed))] if packed else ())
    found = (digest(i) if Location.of(i.path).is_file else next(lines) for i in items)
    return ["" if line.startswith("[") else line for line in found]


def digest(item: Item) -> str:
    """Of all its bytes; empty where they cannot be read."""
    try:
        with open_item(item) as opened:
            file = cast("io.BufferedReader", opened.file)
            return hashlib.file_digest(file, hashlib.blake2b).hexdigest()
    except (OSError, ValueError, EOFError):
        return ""
