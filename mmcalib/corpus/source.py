"""Source protocol, shards, archives as sources."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import Protocol

from mmcalib.corpus.chat import Prompt
from mmcalib.domain.items import Item, Skipped
from mmcalib.storage.location import NOT_REGULAR
from mmcalib.text import NO_ACCESS, NO_FILE, NO_PERMISSION


class Source(Protocol):
    """Media files, requests that name them, or both; each call starts over, in the same order."""

    def items(self) -> Iterator[Item | Skipped]:
        """Every media file once, and every file that cannot be one."""
        ...

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Every request; `Skipped.path` is the request's origin. Empty without requests."""
        ...


def walk(root: str, folders: Folders | None = None) -> Iterator[str | Skipped]:
    """The files below `root`, or itself, in the order of sorted names, depth first.

    Names that begin with a dot are the system's clutter and are left out. Links are followed. What
    is not a regular file is `Skipped`, as is a folder that `folders` has seen.
    """
    seen = folders if folders is not None else Folders()
    found = seen.look(root)
    if not isinstance(found, list):
        yield found or root
        return
    within = [iter(found)]
    while within:
        for entry in within[-1]:
            if entry.name[0] == ".":
                continue
            # What the listing of a folder says of its files saves a look at each.
            if is_listed_file(entry):
                yield entry.path
                continue
            below = seen.look(entry.path)
            if isinstance(below, list):
                within.append(iter(below))
                break
            yield below or entry.path
        else:
            within.pop()


class Folders:
    """The folders that were read, by device and inode, so that links make no circles."""

    def __init__(self) -> None:
        self._read: set[tuple[int, int]] = set()

    def look(self, path: str) -> list[os.DirEntry[str]] | Skipped | None:
        """A folder's entries by name, unless it was read before; None for a regular file."""
        try:
            status = os.stat(path)
            if not stat.S_ISDIR(status.st_mode):
                return None if stat.S_ISREG(status.st_mode) else Skipped(path, NOT_REGULAR)
            with os.scandir(path) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError as error:
            return Skipped(path, why(path, error))
        identity = (status.st_dev, status.st_ino)
        if identity in self._read:
            return Skipped(path, "folder already read under another name", no_media=True)
        self._read.add(identity)
        return entries


def is_hidden(name: str) -> bool:
    """Whether a part of a member's name begins with a dot, as the system's clutter does."""
    if not name.startswith(".") and "/." not in name:
        return False
    return any(step.startswith(".") and step not in (".", "..") for step in name.split("/"))


def is_listed_file(entry: os.DirEntry[str]) -> bool:
    """Whether the listing of its folder says that it is a regular file."""
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def why(path: str, error: OSError) -> str:
    """What keeps a file or folder from being read."""
    if isinstance(error, FileNotFoundError):
        return "dangling link" if os.path.islink(path) else NO_FILE
    if isinstance(error, PermissionError):
        return NO_PERMISSION
    if error.errno == errno.ELOOP:
        return "link that leads back to itself"
    return f"{NO_ACCESS}{error.strerror}" if error.errno else str(error.strerror)
