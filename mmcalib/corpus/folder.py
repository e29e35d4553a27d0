"""A folder of media, or a single file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mmcalib.corpus.item import Item, Prompt, Skipped
from mmcalib.corpus.wording import one_line
from mmcalib.errors import CorpusError


class FolderSource:
    """Every file below `root`, in the order of sorted names, depth first.

    Names that begin with a dot are the system's clutter and are left out. Links are followed; a
    folder that is reached twice is read once. What is not a regular file is `Skipped`; whether a
    regular file is media is for the probe to say.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = os.path.abspath(root)
        if not os.path.lexists(self.root):
            raise CorpusError(
                f"no such folder: {one_line(self.root)}",
                hint="--data DIR names a folder of media files, or one file",
            )

    def items(self) -> Iterator[Item | Skipped]:
        """Raise CorpusError, at the end, when there was nothing at all below `root`."""
        empty = True
        for found in _walk(self.root):
            empty = False
            yield found
        if empty:
            raise CorpusError(
                f"no files in folder: {one_line(self.root)}",
                hint="--data DIR names a folder of media; names with a leading dot do not count",
            )

    def prompts(self) -> Iterator[Prompt | Skipped]:
        yield from ()


def _walk(root: str) -> Iterator[Item | Skipped]:
    folders_read: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        path = waiting.pop()
        try:
            status = os.stat(path)
            if not stat.S_ISDIR(status.st_mode):
                regular = stat.S_ISREG(status.st_mode)
                yield Item(path) if regular else Skipped(path, "not a regular file")
                continue
            names = sorted(name for name in os.listdir(path) if not name.startswith("."))
        except OSError as error:
            yield Skipped(path, _why(path, error))
        else:
            identity = (status.st_dev, status.st_ino)
            if identity in folders_read:
                yield Skipped(path, "folder already read under another name")
            else:
                folders_read.add(identity)
                waiting += [os.path.join(path, name) for name in reversed(names)]


def _why(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "dangling link" if os.path.islink(path) else "no such file any more"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if error.errno == errno.ELOOP:
        return "link that leads back to itself"
    return f"cannot be read: {error.strerror}"
