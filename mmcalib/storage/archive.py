"""Read archives and their members with the standard library.

Use it only in processes with limits: an untrusted archive's headers may cost any memory and time.
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
from mmcalib.storage.access import open_whole, path_version
from mmcalib.storage.location import Location, Opened, member_name
from mmcalib.storage.remote import translate_errors, wrap_file


@dataclass(frozen=True, slots=True)
class Member:
    """A name in an archive; call `open` only if it is a file."""

    name: str
    size_bytes: int
    is_file: bool
    is_folder: bool
    open: Callable[[], IO[bytes] | None]


class Archive(Closing):
    """The archive at a path or URL. Its kind has names with these `extensions`. If it is
    `compressed`, reading a member unpacks those before it. Raises as `open_whole` does.
    """

    extensions: tuple[str, ...]
    compressed = False

    def __init__(self, path: str) -> None:
        self.version, self._opened = open_whole(path)
        self.size_bytes = self._opened.size_bytes
        with translate_errors():
            self.open_archive(self._opened.file)

    def open_archive(self, file: BinaryIO) -> None:
        raise NotImplementedError

    def members(self) -> Iterator[Member]:
        """Yield a tar's members in its order, others by name. Raises OSError and ValueError."""
        raise NotImplementedError

    def find(self, name: str) -> Member:
        """Return the member of that name, in a tar the first. Raises OSError and ValueError."""
        raise NotImplementedError

    def close(self) -> None:
        self._opened.close()

    def __del__(self) -> None:
        if hasattr(self, "_opened"):
            self.close()


class _Zip(Archive):
    extensions = (".zip",)

    def open_archive(self, file: BinaryIO) -> None:
        self._zip = zipfile.ZipFile(file)

    def members(self) -> Iterator[Member]:
        return map(self.find, sorted(self._zip.NameToInfo))

    def find(self, name: str) -> Member:
        if not (info := self._zip.NameToInfo.get(name)):
            raise FileNotFoundError(errno.ENOENT, "member not found")
        opening = partial(self._zip.open, info)
        return Member(info.filename, info.file_size, not info.is_dir(), info.is_dir(), opening)


class _Tar(Archive):
    extensions = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")

    def open_archive(self, file: BinaryIO) -> None:
        self._members: dict[str, Member] = {}
        try:
            self._tar = tarfile.open(fileobj=file, tarinfo=_Header)  # noqa: SIM115
        except tarfile.ReadError as error:
            raise ValueError("not a tar archive") from error
        self.compressed = self._tar.fileobj is not file

    def members(self) -> Iterator[Member]:
        return iter(self._next, None)

    def find(self, name: str) -> Member:
        while name not in self._members and (member := self._next()):
            self._members.setdefault(member.name, member)
        if name not in self._members:
            raise FileNotFoundError(errno.ENOENT, "member not found")
        return self._members[name]

    def _next(self) -> Member | None:
        with translate_errors():
            info = self._tar.next()
        if info is None:
            return None
        # A negative size would lead back to earlier members, in an endless loop.
        if info.size < 0:
            raise ValueError("a member has a negative size")
        is_file = info.isreg() and not info.issparse()
        opening = partial(self._tar.extractfile, info)
        return Member(info.name, info.size, is_file, info.isdir(), opening)


class _Header(tarfile.TarInfo):
    """Reports a damaged header, which `TarFile.next` would take for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


# The scheme of a member's location -> its archive.
ARCHIVES: Mapping[str, type[Archive]] = {"tar": _Tar, "zip": _Zip}


def open_item(item: Item, location: Location) -> Opened:
    """Open the member that `item` names. Raises OSError and ValueError."""
    if location.scheme not in ARCHIVES:
        raise ValueError(f"unsupported archive: {location.scheme}")
    path = location.archive or ""
    is_local = Location.of(path).is_file
    version = item.byte_source.version if item.byte_source and not is_local else path_version(path)
    if item.byte_source and item.byte_source.version != version:
        raise ValueError("the archive changed after it was listed")
    archive = _open_archive(location.scheme, path, version, threading.get_ident())
    member = archive.find(member_name(location.member or ""))
    with translate_errors():
        file = member.open() if member.is_file else None
    if file is None:
        raise ValueError("not a regular file in the archive")
    return Opened(wrap_file(file), member.size_bytes, within=archive)


# Keeps the last archive open, because its other members come next.
@lru_cache(maxsize=1)
def _open_archive(scheme: str, path: str, version: str, thread: int) -> Archive:
    return ARCHIVES[scheme](path)
