"""Files by their paths, one on each line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from mmcalib.corpus.item import Item, Prompt, Skipped


class PathsSource:
    """Relative paths start at the working folder; blank lines do not count.

    Lines of a stream, such as standard input, can be read once only.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines

    def items(self) -> Iterator[Item | Skipped]:
        """Every line, as it comes; whether there is such a file is for the probe to say."""
        for line in self._lines:
            if line.strip():
                yield Item(os.path.abspath(os.fsdecode(line.rstrip(b"\r\n"))))

    def prompts(self) -> Iterator[Prompt | Skipped]:
        yield from ()
