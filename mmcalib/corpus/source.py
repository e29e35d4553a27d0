"""The protocol of corpus sources, and the walk through folders."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import Protocol

from mmcalib.corpus.chat import Prompt
from mmcalib.domain.items import Item, Skipped
from mmcalib.media.failure import error_reason
from mmcalib.storage.location import NOT_REGULAR


class Source(Protocol):
    """Media files, requests that name them, or both. Each call starts over in the same order."""

    def items(self) -> Iterator[Item | Skipped]:
        """Yield every media file once, and `Skipped` for files that cannot be media."""

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Yield every request; `Skipped.path` is the request's origin."""


def walk(root: str, folders: Folders | None = None) -> Iterator[str | Skipped]:
    """Yield the files below `root`, or `root` itself, depth first and sorted by name.

    Names with a leading dot are ignored. Links are followed. Anything but a regular file is
    `Skipped`, as is a folder that `folders` has seen.
    """
    seen = folders if folders is not None else Folders()
    entries = seen.list_entries(root)
    if not isinstance(entries, list):
        yield entries or root
        return
    within = [iter(entries)]
    while within:
        for entry in within[-1]:
            if entry.name[0] == ".":
                continue
            # The folder's listing already has the file type, which saves a `stat` per file.
            if is_listed_file(entry):
                yield entry.path
                continue
            below = seen.list_entries(entry.path)
            if isinstance(below, list):
                within.append(iter(below))
                break
            yield below or entry.path
        else:
            within.pop()


class Folders:
    """Remembers folders by device and inode, so that circular links end."""

    def __init__(self) -> None:
        self._read: set[tuple[int, int]] = set()

    def list_entries(self, path: str) -> list[os.DirEntry[str]] | Skipped | None:
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
        if identity in self._read:
            return Skipped(path, "folder already read under another name", no_media=True)
        self._read.add(identity)
        return entries


def is_hidden(name: str) -> bool:
    """True if any part of a member's name has a leading dot."""
    return any(step.startswith(".") and step not in (".", "..") for step in name.split("/"))


def is_listed_file(entry: os.DirEntry[str]) -> bool:
    """True if the folder's listing marks the entry as a regular file."""
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False
