"""The items that requests use, in order: the accesses that vLLM's processor cache would see.

Items with equal bytes under different names are one item there.
"""

from __future__ import annotations

import hashlib
import io
import os
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from mmcalib.census.executor import FunctionRef, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.corpus.chat import Prompt
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import Shape
from mmcalib.progress import Progress, Silent
from mmcalib.storage.access import open_item
from mmcalib.storage.location import Location

# The start of a longer log is enough; the hit curve of a million accesses takes seconds.
MAX_ACCESSES = 4_000_000
# Only this many requests keep their origins.
MAX_ORIGINS = 100_000


@dataclass(frozen=True, slots=True)
class Access:
    """A request's origin, its items' indices, and its answer length in tokens (None if not set)."""

    origin: str
    items: Sequence[int]
    answer_tokens: int | None


@dataclass(frozen=True, slots=True)
class Accesses:
    """The usable requests in order, each as the indices of its items.

    Items of equal content and modality share an index. `complete` means that no request is missing.
    `answers` has the origins and answer lengths of the first requests.
    """

    items: tuple[tuple[Shape, str], ...] = ()
    item_indices: Sequence[int] = ()
    ends: Sequence[int] = ()
    complete: bool = True
    answers: Sequence[tuple[str, int | None]] = ()

    def requests(self) -> Iterator[Sequence[int]]:
        """Yield each request that has items, as the indices of its items in order."""
        start = 0
        for end in self.ends:
            if end > start:
                yield self.item_indices[start:end]
            start = end

    def known_origins(self) -> Iterator[Access]:
        """Yield the requests with known origins, including those without items."""
        start = 0
        for end, (origin, answer_tokens) in zip(self.ends, self.answers, strict=False):
            yield Access(origin, self.item_indices[start:end], answer_tokens)
            start = end


@dataclass(slots=True)
class AccessLog:
    """Records accesses at four bytes each, plus an entry per distinct item and early request."""

    most: int = MAX_ACCESSES
    _indices: dict[Item, int] = field(default_factory=dict)
    _shapes: list[Shape] = field(default_factory=list)
    _accesses: array[int] = field(default_factory=lambda: array("I"))
    _ends: array[int] = field(default_factory=lambda: array("I"))
    _asked: list[tuple[str, int | None]] = field(default_factory=list)
    _complete: bool = True

    def add(self, prompt: Prompt, shapes: Iterable[Shape]) -> None:
        """Record a request, whose items have these shapes."""
        items = prompt.items
        self._complete &= len(self._accesses) + len(items) <= self.most
        if not self._complete:
            return
        for item, shape in zip(items, shapes, strict=True):
            index = self._indices.setdefault(item, len(self._indices))
            if index == len(self._shapes):
                self._shapes.append(shape)
            self._accesses.append(index)
        self._ends.append(len(self._accesses))
        if len(self._asked) < MAX_ORIGINS:
            self._asked.append((prompt.origin, prompt.request.answer_tokens))

    def accesses(self, progress: Progress | None = None) -> Accesses:
        """Return what was recorded; reads files of equal size to compare them."""
        items = list(self._indices)
        first = find_first_equal(items, progress or Silent())
        new_index = {index: number for number, index in enumerate(sorted(set(first)))}
        return Accesses(
            items=tuple((self._shapes[index], items[index].path) for index in new_index),
            item_indices=array("I", (new_index[first[index]] for index in self._accesses)),
            ends=self._ends,
            complete=self._complete,
            answers=self._asked,
        )


_DIGEST = FunctionRef("mmcalib.census.accesses", "digest")


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
    lines = iter([one.line for one in pool.submit(packed)()] if packed else ())
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
