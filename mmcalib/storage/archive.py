"""Archives by kind, and their members, by the standard library.

An archive is foreign: its headers may ask for any memory and time. For processes that have a bound.
"""

from __future__ import annotations

import errno
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import IO, BinaryIO

from mmcalib.domain.items import Item
from mmcalib.processes import Closing
from mmcalib.storage.location import Location, Opened, member_name, open_whole, path_version
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
    """The archive at a path or URL. Names of its kind have one of the `endings`. `compressed`: a
    member can only be had by unpacking those before it. Raises as `open_whole` does.
    """

    endings: tuple[str, ...]
    compressed = False

    def __init__(self, path: str) -> None:
        self.version, self._file, self.size_bytes = open_whole(path)
        with plain_errors():
            self.begin(self._file)

    def begin(self, file: BinaryIO) -> None:
        raise NotImplementedError

    def members(self) -> Iterator[Member]:
        """All of a tar in its order, of others by name. Raises OSError and ValueError."""
        raise NotImplementedError

    def find(self, name: str) -> Member:
        """The one that is meant by a name: in a tar the first. Raises OSError and ValueError."""
        raise NotImplementedError

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


class _Zip(Archive):
    endings = (".zip",)

    def begin(self, file: BinaryIO) -> None:
        self._zip = zipfile.ZipFile(file)

    def members(self) -> Iterator[Member]:
        return map(self.find, sorted(self._zip.NameToInfo))

    def find(self, name: str) -> Member:
        if not (info := self._zip.NameToInfo.get(name)):
            raise FileNotFoundError(errno.ENOENT, "no such member")
        opening = partial(self._zip.open, info)
        return Member(info.filename, info.file_size, not info.is_dir(), info.is_dir(), opening)


class _Tar(Archive):
    endings = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")

    def begin(self, file: BinaryIO) -> None:
        self._known: dict[str, Member] = {}
        try:
            self._tar = tarfile.open(fileobj=file, tarinfo=_Header)  # noqa: SIM115
        except tarfile.ReadError as error:
            raise ValueError("not a tar archive") from error
        self.compressed = self._tar.fileobj is not file

    def members(self) -> Iterator[Member]:
        return iter(self._next, None)

    def find(self, name: str) -> Member:
        while name not in self._known and (member := self._next()):
            self._known.setdefault(member.name, member)
        if name not in self._known:
            raise FileNotFoundError(errno.ENOENT, "no such member")
        return self._known[name]

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


# By the scheme of a member's location.
ARCHIVES: Mapping[str, type[Archive]] = {"tar": _Tar, "zip": _Zip}


def open_item(item: Item, location: Location) -> Opened:
    """The member that `item` names. Raises OSError and ValueError."""
    if location.scheme not in ARCHIVES:
        raise ValueError(f"no archive of this kind: {location.scheme}")
    path = location.archive or ""
    here = Location.of(path).is_file
    version = item.held.version if item.held and not here else path_version(path)
    if item.held and item.held.version != version:
        raise ValueError("its archive has changed since it was listed")
    archive = _opened(location.scheme, path, version, threading.get_ident())
    member = archive.find(member_name(location.member or ""))
    with plain_errors():
        file = member.open() if member.is_file else None
    if file is None:
        raise ValueError("no file within its archive")
    return Opened(foreign(file), member.size_bytes, within=archive)


# The archive that was opened last stays open: its other members come next.
@lru_cache(maxsize=1)
def _opened(scheme: str, path: str, version: str, thread: int) -> Archive:
    return ARCHIVES[scheme](path)
