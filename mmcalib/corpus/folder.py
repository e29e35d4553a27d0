"""A folder of media, or a single file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mmcalib.corpus.archives import items_of, prompts_of
from mmcalib.corpus.source import at_least_one
from mmcalib.corpus.walk import walk
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import CorpusError
from mmcalib.wording import one_line


class FolderSource:
    """Every file below `root`, in the order of sorted names, depth first, and what archives hold.

    Names that begin with a dot are the system's clutter and are left out. Links are followed; a
    folder that is reached twice is read once. What is not a regular file is `Skipped`; whether a
    regular file is media is for the probe to say. `given_as` is what a hint calls it.
    """

    def __init__(self, root: str | Path, *, given_as: str = "--data DIR") -> None:
        self.root, self._given_as = os.path.abspath(root), given_as
        if not os.path.lexists(self.root):
            raise CorpusError(
                f"no such folder: {one_line(self.root)}",
                hint=f"{given_as} names a folder of media files, or one file",
            )

    def items(self) -> Iterator[Item | Skipped]:
        """Raise CorpusError, at the end, when there was nothing at all below `root`."""
        nothing = CorpusError(
            f"no files in folder: {one_line(self.root)}",
            hint=f"{self._given_as} names a folder of media; names with a leading dot do not count",
        )
        yield from at_least_one(items_of(walk(self.root)), nothing)

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Those of the archives."""
        yield from prompts_of(walk(self.root))
