"""Files by a pattern of their paths, as a shell writes it."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator

from mmcalib.corpus.archives import items_of, prompts_of
from mmcalib.corpus.source import at_least_one
from mmcalib.corpus.walk import Folders, is_listed_file, walk
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import CorpusError
from mmcalib.wording import one_line

_MAGIC = re.compile(r"[*?[]")
_ANY_FOLDERS = "**"


def is_pattern(text: str) -> bool:
    return _MAGIC.search(text) is not None


class GlobSource:
    """Every file that `pattern` matches, once, in the order of sorted names, depth first.

    `*`, `?` and `[...]` match within a name, `**` any number of folders. Names that begin with a
    dot match only where the pattern has the dot. A folder that matches stands for all below it.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        steps = os.path.normpath(os.path.abspath(pattern)).split("/")
        fixed = next((n for n, step in enumerate(steps) if is_pattern(step)), len(steps) - 1)
        self._root = "/".join(steps[:fixed]) or "/"
        self._steps = [_step(step) for step in steps[fixed:]]

    def items(self) -> Iterator[Item | Skipped]:
        """Raise CorpusError, at the end, when nothing matched."""
        nothing = CorpusError(
            f"no file matches: {one_line(self.pattern)}",
            hint="--data 'media/**/*.jpg', in quotes, so that the shell leaves it as it is",
        )
        yield from at_least_one(items_of(self._paths()), nothing)

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Those of the archives that match."""
        yield from prompts_of(self._paths())

    def _paths(self) -> Iterator[str | Skipped]:
        """Go where the pattern leads. Each path comes with the places in the pattern that it may
        stand at: the steps that its next name has to match.
        """
        folders, end = Folders(), len(self._steps)
        waiting = [(self._root, self._from(0))]
        while waiting:
            path, places = waiting.pop()
            if end in places:
                yield from walk(path, folders)
                continue
            entries = folders.look(path)
            if isinstance(entries, Skipped) and os.path.isdir(path):
                yield entries
            elif isinstance(entries, list):
                ahead = [(entry, self._after(places, entry.name)) for entry in reversed(entries)]
                waiting += [
                    (entry.path, on)
                    for entry, on in ahead
                    if end in on or (on and not is_listed_file(entry))
                ]

    def _after(self, places: frozenset[int], name: str) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        for place in places:
            step = self._steps[place]
            if step is None:
                found |= frozenset() if name.startswith(".") else self._from(place)
            elif step(name):
                found |= self._from(place + 1)
        return found

    def _from(self, place: int) -> frozenset[int]:
        """`**` may stand for no folder at all; at the end of a pattern it stands for everything."""
        if place < len(self._steps) and self._steps[place] is None:
            return frozenset((place,)) | self._from(place + 1)
        return frozenset((place,))


def _step(words: str) -> Callable[[str], bool] | None:
    """Whether a name matches one step of the pattern; None for `**`."""
    if words == _ANY_FOLDERS:
        return None
    matches, hidden = re.compile(fnmatch.translate(words)).match, words.startswith(".")
    return lambda name: (hidden or not name.startswith(".")) and matches(name) is not None
