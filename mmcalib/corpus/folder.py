"""Folders, globs and lists of paths."""

from __future__ import annotations

import fnmatch
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Generic, TypeVar

from mmcalib.corpus.archives import archive_at
from mmcalib.corpus.chat import Prompt
from mmcalib.corpus.source import Folders, Source, is_listed_file, walk
from mmcalib.domain.items import Item, Skipped
from mmcalib.errors import CorpusError, OutputError
from mmcalib.storage.location import Location
from mmcalib.text import one_line

P = TypeVar("P")


class Files(Generic[P]):
    """The files at `_paths`, and what archives among them hold."""

    _nothing: CorpusError

    def items(self) -> Iterator[Item | Skipped]:
        """Raise CorpusError, at the end, when there was no path at all."""
        empty = True
        for one in self._items():
            empty = False
            yield one
        if empty:
            raise self._nothing

    def _items(self) -> Iterator[Item | Skipped]:
        for path in self._paths():
            if isinstance(path, Skipped):
                yield path
            elif archive := self._archive(path):
                yield from archive.items()
            else:
                yield self._item(path)

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Those of the archives."""
        for path in self._paths():
            if not isinstance(path, Skipped) and (archive := self._archive(path)):
                yield from archive.prompts()

    def _paths(self) -> Iterator[P | Skipped]:
        raise NotImplementedError

    def _archive(self, path: P) -> Source | None:
        return archive_at(str(path))

    def _item(self, path: P) -> Item | Skipped:
        return Item(str(path))


class FolderSource(Files[str]):
    """Every file below `root`, in the order of sorted names, depth first, and what archives hold.

    Names that begin with a dot are the system's clutter and are left out. Links are followed; a
    folder that is reached twice is read once. What is not a regular file is `Skipped`; whether a
    regular file is media is for the probe to say. `given_as` is what a hint calls it.
    """

    def __init__(self, root: str | Path, *, given_as: str = "--data DIR") -> None:
        self.root = os.path.abspath(root)
        if not os.path.lexists(self.root):
            raise CorpusError(
                f"no such folder: {one_line(self.root)}",
                hint=f"{given_as} names a folder of media files, or one file",
            )
        self._nothing = CorpusError(
            f"no files in folder: {one_line(self.root)}",
            hint=f"{given_as} names a folder of media; names with a leading dot do not count",
        )

    def _paths(self) -> Iterator[str | Skipped]:
        return walk(self.root)


_MAGIC = re.compile(r"[*?[]")
_ANY_FOLDERS = "**"


def is_pattern(text: str) -> bool:
    return _MAGIC.search(text) is not None


class GlobSource(Files[str]):
    """Every file that `pattern` matches, once, in the order of sorted names, depth first.

    `*`, `?` and `[...]` match within a name, `**` any number of folders. Names that begin with a
    dot match only where the pattern has the dot. A folder that matches stands for all below it.
    """

    def __init__(self, pattern: str) -> None:
        self._nothing = CorpusError(
            f"no file matches: {one_line(pattern)}",
            hint="--data 'media/**/*.jpg', in quotes, so that the shell leaves it as it is",
        )
        steps = os.path.normpath(os.path.abspath(pattern)).split("/")
        fixed = next((n for n, step in enumerate(steps) if is_pattern(step)), len(steps) - 1)
        self._root = "/".join(steps[:fixed]) or "/"
        self._steps = [_step(step) for step in steps[fixed:]]

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


# Linux takes paths of up to 4 KiB, object stores names of up to 1 KiB.
_LONGEST_LINE_BYTES = 1 << 16
# Beyond this, lines that can be read only once wait on disk for the second reading.
_IN_MEMORY_BYTES = 1 << 24


class PathsSource(Files[str]):
    """The files and URLs on `lines`, and what archives among them hold.

    Relative paths start at the working folder; blank lines do not count. Whether there is such a
    file is for the probe to say. `lines` are read more than once: see `StreamLines`.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self._nothing = CorpusError(
            "no path in the list of paths", hint="one path or URL on each line of @FILE or -"
        )

    def _paths(self) -> Iterator[str | Skipped]:
        for line in self._lines:
            if len(line) > _LONGEST_LINE_BYTES:
                start = one_line(os.fsdecode(line[:_LONGEST_LINE_BYTES]))
                yield Skipped(start, f"line of more than {_LONGEST_LINE_BYTES >> 10} KiB")
            elif line.strip():
                path = os.fsdecode(line.rstrip(b"\r\n"))
                yield os.path.abspath(path) if Location.of(path).is_file else path


class ListFile:
    """The lines of the file at `path`, each time anew."""

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.isfile(path):
            raise CorpusError(
                f"no such list of paths: {one_line(path)}",
                hint="--data @paths.txt names a file with one path on each line",
            )

    def __iter__(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            yield from _lines(file)


class StreamLines:
    """The lines of a stream that can be read once, such as standard input, as often as needed.

    Raises OutputError when they are many and the disk for temporary files is full.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._copy: IO[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        if self._copy is None:
            self._copy = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
            lines = (line.rstrip(b"\r\n") + b"\n" for line in _lines(self._stream))
            try:
                self._copy.writelines(lines)
            except OSError as error:
                raise OutputError(
                    f"cannot keep the list of paths: {error.strerror}",
                    hint="--data @paths.txt, or TMPDIR=DIR",
                ) from error
        self._copy.seek(0)
        yield from _lines(self._copy)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """What is too long for a path is cut one byte later."""
    while line := file.readline(_LONGEST_LINE_BYTES + 1):
        end = line
        while end and not end.endswith(b"\n"):
            end = file.readline(_LONGEST_LINE_BYTES)
        yield line
