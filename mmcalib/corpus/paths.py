"""Files by their paths, one on each line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

from mmcalib.corpus.archives import items_of, prompts_of
from mmcalib.corpus.source import at_least_one
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import CorpusError, OutputError
from mmcalib.locations.location import Location
from mmcalib.wording import one_line

# Linux takes paths of up to 4 KiB, object stores names of up to 1 KiB.
_LONGEST_LINE_BYTES = 1 << 16
# Beyond this, lines that can be read only once wait on disk for the second reading.
_IN_MEMORY_BYTES = 1 << 24


class PathsSource:
    """The files and URLs on `lines`, and what archives among them hold.

    Relative paths start at the working folder; blank lines do not count. Whether there is such a
    file is for the probe to say. `lines` are read more than once: see `StreamLines`.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines

    def items(self) -> Iterator[Item | Skipped]:
        """Raise CorpusError, at the end, when there was no path at all."""
        nothing = CorpusError(
            "no path in the list of paths", hint="one path or URL on each line of @FILE or -"
        )
        yield from at_least_one(items_of(self._paths()), nothing)

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Those of the archives."""
        yield from prompts_of(self._paths())

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
