"""Members of tar and zip archives. They are foreign: for processes that have a bound."""

from __future__ import annotations

import errno
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import IO

from mmcalib.domain.items import Item
from mmcalib.processes import Closing
from mmcalib.storage.location import (
    Location,
    Opened,
    member_name,
    open_whole,
    path_version,
)
from mmcalib.storage.remote import foreign, plain_errors


@dataclass(frozen=True, slots=True)
class Member:
    """A name in an archive; `open` may be called where it is a file."""

    name: str
    size_bytes: int
    is_file: bool
    is_folder: bool
    open: Callable[[], IO[bytes] | None]


class Archive(Closing):
    """The archive, `tar` or `zip`, at a path or URL. Raises as `open_whole` does."""

    def __init__(self, scheme: str, path: str) -> None:
        self.version, self._file, self.size_bytes = open_whole(path)
        self._zip: zipfile.ZipFile | None = None
        self._known: dict[str, Member] = {}
        with plain_errors():
            if scheme == "zip":
                self._zip = zipfile.ZipFile(self._file)
                return
            try:
                self._tar = tarfile.open(fileobj=self._file, tarinfo=_Header)  # noqa: SIM115
            except tarfile.ReadError as error:
                raise ValueError("not a tar archive") from error

    @property
    def compressed(self) -> bool:
        """Whether a member can only be had by unpacking those before it."""
        return self._zip is None and self._tar.fileobj is not self._file

    def members(self) -> Iterator[Member]:
        """All of a tar in its order, those of a zip by name. Raises OSError and ValueError."""
        if self._zip:
            for name in sorted(self._zip.NameToInfo):
                yield self._in_zip(self._zip, self._zip.NameToInfo[name])
        else:
            while member := self._next():
                yield member

    def find(self, name: str) -> Member:
        """The one that is meant by a name: in a tar the first. Raises OSError and ValueError."""
        if self._zip and name in self._zip.NameToInfo:
            return self._in_zip(self._zip, self._zip.NameToInfo[name])
        while not self._zip and name not in self._known and (member := self._next()):
            self._known.setdefault(member.name, member)
        if name not in self._known:
            raise FileNotFoundError(errno.ENOENT, "no such member")
        return self._known[name]

    def _in_zip(self, file: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
        opening = partial(file.open, info)
        return Member(info.filename, info.file_size, not info.is_dir(), info.is_dir(), opening)

    def _next(self) -> Member | None:
        with plain_errors():
            info = self._tar.next()
        if info is None:
            return None
        # It would lead back to the members before it, for ever.
        if info.size < 0:
            raise ValueError("header with a negative size")
        is_file = info.isreg() and not info.issparse()
        opening = partial(self._tar.extractfile, info)
        return Member(info.name, info.size, is_file, info.isdir(), opening)

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


class _Header(tarfile.TarInfo):
    """`TarFile.next` takes a damaged header for the end of the archive; this one tells."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


def open_item(item: Item, location: Location) -> Opened:
    """The member that `item` names. Raises OSError and ValueError."""
    path = location.archive or ""
    here = Location.of(path).is_file
    version = item.held.version if item.held and not here else path_version(path)
    if item.held and item.held.version != version:
        raise ValueError("its archive has changed since it was listed")
    archive = _opened(location.scheme or "", path, version, threading.get_ident())
    member = archive.find(member_name(location.member or ""))
    with plain_errors():
        file = member.open() if member.is_file else None
    if file is None:
        raise ValueError("no file within its archive")
    return Opened(foreign(file), member.size_bytes, within=archive)


# The archive that was opened last stays open: its other members come next.
@lru_cache(maxsize=1)
def _opened(scheme: str, path: str, version: str, thread: int) -> Archive:
    return Archive(scheme, path)
