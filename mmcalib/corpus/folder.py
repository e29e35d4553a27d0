"""Sources of local files: folders, globs and lists of paths."""

from __future__ import annotations

import codecs
import errno
import fnmatch
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Generic, TypeVar

from mmcalib.corpus.archives import archive_source
from mmcalib.corpus.chat import Prompt, Source
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import is_size, with_tag
from mmcalib.errors import CorpusError, OutputError
from mmcalib.files import cut_lines
from mmcalib.media.failure import error_reason
from mmcalib.storage.location import NOT_REGULAR, Location
from mmcalib.text import one_line

P = TypeVar("P")


class Files(Generic[P]):
    """The files at `_paths`, with archives replaced by their members."""

    _nothing: CorpusError

    def items(self) -> Iterator[Item | Skipped]:
        """Yield all items. Raises CorpusError at the end if there was no path."""
        path = None
        for path in self._paths():
            if isinstance(path, Skipped):
                yield path
            elif archive := self._archive(path):
                yield from archive.items()
            else:
                yield self._item(path)
        if path is None:
            raise self._nothing

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Yield the prompts in the archives."""
        for path in self._paths():
            if not isinstance(path, Skipped) and (archive := self._archive(path)):
                yield from archive.prompts()

    def _paths(self) -> Iterator[P | Skipped]:
        raise NotImplementedError

    def _archive(self, path: P) -> Source | None:
        return archive_source(str(path))

    def _item(self, path: P) -> Item | Skipped:
        return Item(str(path))


class FolderSource(Files[str]):
    """Every file below `root`, with archives' members.

    The probe decides what is media. Hints name the option `given_as`.
    """

    def __init__(self, root: str | Path, *, given_as: str = "--data DIR") -> None:
        self.root = os.path.abspath(root)
        if not os.path.lexists(self.root):
            raise CorpusError(
                f"folder not found: {one_line(self.root)}",
                hint=f"pass a folder of media files, or one file, with {given_as}",
            )
        self._nothing = CorpusError(
            f"folder contains no files: {one_line(self.root)}",
            hint="put media files into it; mmcalib ignores names with a leading dot",
        )

    def _paths(self) -> Iterator[str | Skipped]:
        return _walk(self.root, set())


# Device and inode of each folder that was read, so that circular links end.
_Read = set[tuple[int, int]]


def _walk(root: str, read: _Read) -> Iterator[str | Skipped]:
    """Yield the files below `root`, or `root` itself, depth first and sorted by name.

    Names with a leading dot are ignored. Links are followed. Anything but a regular file is
    `Skipped`, as is a folder in `read`.
    """
    entries = _list_entries(root, read)
    if not isinstance(entries, list):
        yield entries or root
        return
    within = [iter(entries)]
    while within:
        for entry in within[-1]:
            if entry.name[0] == ".":
                continue
            # The folder's listing already has the file type, which saves a `stat` per file.
            if _is_listed_file(entry):
                yield entry.path
                continue
            below = _list_entries(entry.path, read)
            if isinstance(below, list):
                within.append(iter(below))
                break
            yield below or entry.path
        else:
            within.pop()


def _list_entries(path: str, read: _Read) -> list[os.DirEntry[str]] | Skipped | None:
    """Return a folder's sorted entries, `Skipped` if it was read before; None for a file."""
    try:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            return None if stat.S_ISREG(status.st_mode) else Skipped(path, NOT_REGULAR)
        with os.scandir(path) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        is_broken = isinstance(error, FileNotFoundError) and os.path.islink(path)
        why = "broken link" if is_broken else error_reason(error)
        return Skipped(path, "circular link" if error.errno == errno.ELOOP else why)
    identity = (status.st_dev, status.st_ino)
    if identity in read:
        return Skipped(path, "folder already read under another name", no_media=True)
    read.add(identity)
    return entries


def _is_listed_file(entry: os.DirEntry[str]) -> bool:
    """True if the folder's listing marks the entry as a regular file."""
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


_WILDCARDS = re.compile(r"[*?[]")
_ANY_FOLDERS = "**"


def is_pattern(text: str) -> bool:
    return _WILDCARDS.search(text) is not None


class GlobSource(Files[str]):
    """Every file that `pattern` matches, once, depth first and sorted by name.

    `*`, `?` and `[...]` match within a name, `**` matches any number of folders. A leading dot must
    be in the pattern. A folder that matches includes everything below it.
    """

    def __init__(self, pattern: str) -> None:
        self._nothing = CorpusError(
            f"no file matches {one_line(pattern)}",
            hint="quote the pattern so that the shell does not expand it: --data 'media/**/*.jpg'",
        )
        steps = os.path.normpath(os.path.abspath(pattern)).split("/")
        fixed = next((n for n, step in enumerate(steps) if is_pattern(step)), len(steps) - 1)
        self._root = "/".join(steps[:fixed]) or "/"
        # How each step matches a name, and whether it may match several in turn.
        self._steps = [(_step(step), step == _ANY_FOLDERS) for step in steps[fixed:]]

    def _paths(self) -> Iterator[str | Skipped]:
        """Walk the pattern. Each path carries the pattern steps that its next name may match."""
        read, end = _Read(), len(self._steps)
        waiting = [(self._root, self._from(0))]
        while waiting:
            path, places = waiting.pop()
            if end in places:
                yield from _walk(path, read)
                continue
            entries = _list_entries(path, read)
            if isinstance(entries, Skipped) and os.path.isdir(path):
                yield entries
            elif isinstance(entries, list):
                matches = [(entry, self._after(places, entry.name)) for entry in reversed(entries)]
                waiting += [
                    (entry.path, after)
                    for entry, after in matches
                    if end in after or (after and not _is_listed_file(entry))
                ]

    def _after(self, places: frozenset[int], name: str) -> frozenset[int]:
        after: frozenset[int] = frozenset()
        for place in places:
            matches, again = self._steps[place]
            if matches(name):
                after |= self._from(place if again else place + 1)
        return after

    def _from(self, place: int) -> frozenset[int]:
        """The place, and the next one after `**`, which also matches zero folders."""
        if place < len(self._steps) and self._steps[place][1]:
            return frozenset((place,)) | self._from(place + 1)
        return frozenset((place,))


def _step(words: str) -> Callable[[str], bool]:
    """Return a function that matches one name of the pattern."""
    matches, hidden = re.compile(fnmatch.translate(words)).match, words.startswith(".")
    return lambda name: (hidden or not name.startswith(".")) and matches(name) is not None


# Linux limits paths to 4 KiB, object stores limit names to 1 KiB.
_MAX_LINE_BYTES = 1 << 16
# Lines of a stream beyond this size go to disk, because they are read twice.
_MAX_IN_MEMORY_BYTES = 1 << 24


class PathsSource(Files[str]):
    """The files and URLs on `lines`, which are read more than once: see `StreamLines`.

    Paths start at the working folder; blank lines are ignored. The probe reports missing files.
    Each size without a tag is an item of its own; `tag` and its line name it.
    """

    def __init__(self, lines: Iterable[bytes], *, tag: str = "line-") -> None:
        self._lines, self._tag = lines, tag
        self._nothing = CorpusError(
            "the list of paths is empty", hint="write one path or URL on each line of @FILE or -"
        )

    def _paths(self) -> Iterator[str | Skipped]:
        for number, line in enumerate(self._lines, 1):
            if len(line) > _MAX_LINE_BYTES:
                start = one_line(os.fsdecode(line[:_MAX_LINE_BYTES]))
                yield Skipped(start, f"line is longer than {_MAX_LINE_BYTES >> 10} KiB")
            elif line.strip():
                path = os.fsdecode(line.rstrip(b"\r\n").removeprefix(codecs.BOM_UTF8))
                if self._tag and is_size(path):
                    path = with_tag(path, f"{self._tag}{number}")
                yield os.path.abspath(path) if Location.of(path).is_file else path


class ListFile:
    """The lines of the file at `path`; each iteration reads it again."""

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.isfile(path):
            raise CorpusError(
                f"list of paths not found: {one_line(path)}",
                hint="--data @paths.txt takes a file with one path on each line",
            )

    def __iter__(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            yield from cut_lines(file, _MAX_LINE_BYTES)


class StreamLines:
    """The lines of a stream such as standard input, kept so that they can be read again.

    Raises OutputError if the disk for temporary files fills up.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._copy: IO[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        if self._copy is None:
            self._copy = tempfile.SpooledTemporaryFile(_MAX_IN_MEMORY_BYTES)  # noqa: SIM115
            cut = cut_lines(self._stream, _MAX_LINE_BYTES)
            lines = (line.rstrip(b"\r\n") + b"\n" for line in cut)
            try:
                self._copy.writelines(lines)
            except OSError as error:
                raise OutputError(
                    f"cannot store the list of paths: {error.strerror}",
                    hint="pass a file (--data @paths.txt), or set TMPDIR=DIR to a larger disk",
                ) from error
        self._copy.seek(0)
        yield from cut_lines(self._copy, _MAX_LINE_BYTES)
