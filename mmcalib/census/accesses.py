"""The items that requests use, in order: the accesses that vLLM's processor cache would see."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mmcalib.census.contents import find_first_equal
from mmcalib.corpus.chat import Prompt
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import Shape
from mmcalib.progress import Progress, Silent

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
        if not self._complete:
            return
        if len(self._accesses) + len(items) > self.most:
            self._complete = False
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
