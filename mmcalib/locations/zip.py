"""Members of zip archives, on disk or behind a URL, read in place."""

from __future__ import annotations

import errno
import io
import stat
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast

from mmcalib.domain.items import Item
from mmcalib.locations.disk import NOT_REGULAR, regular_version
from mmcalib.locations.file_slice import Window
from mmcalib.locations.location import Location, member_name
from mmcalib.locations.opening import Opened
from mmcalib.locations.optional_deps import foreign, plain_errors
from mmcalib.sizes import GIB

# A member's name takes some 100 bytes of the archive's directory, and 1 KiB of memory.
MOST_DIRECTORY_BYTES = 1 << 26

# What may be inflated of one member: each step back starts over. Takes some four seconds.
MOST_INFLATED_BYTES = GIB

# bzip2 and LZMA make gigabytes of a few kilobytes in one step.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1

# APPNOTE.TXT 6.3.10, 4.3.7: the local header, whose name and extra field have lengths of their own.
_LOCAL_HEADER_BYTES = 30
_LOCAL_SIGNATURE = b"PK\3\4"


SHARED = "shares its bytes with another member"


@dataclass(frozen=True, slots=True)
class ZipArchive:
    """An open archive and its directory; `version` changes when the archive does. The members at
    `shared` places overlap others: so a kilobyte can be counted, and inflated, for each entry of
    the directory anew.
    """

    file: BinaryIO
    directory: zipfile.ZipFile
    version: str
    shared: frozenset[int]

    def unreadable(self, member: zipfile.ZipInfo) -> str | None:
        """Why a member cannot be opened at all, or None."""
        mode = member.external_attr >> 16
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            return NOT_REGULAR
        if member.flag_bits & _ENCRYPTED:
            return "encrypted"
        if member.compress_type not in _METHODS:
            return f"compression method {member.compress_type} of zip"
        return SHARED if member.header_offset in self.shared else None


def open_archive(path: str, version: str | None = None) -> ZipArchive:
    """The archive at a path or URL; the one opened last is kept.

    Raises OSError or ValueError, UsageError when a package is not installed.
    """
    if Location.of(path).is_file:
        return _open(path, regular_version(path))
    from mmcalib.locations.remote import version_of

    return _open(path, version or version_of(path))


@lru_cache(maxsize=1)
def _open(path: str, version: str) -> ZipArchive:
    if Location.of(path).is_file:
        file = cast("BinaryIO", open(path, "rb"))  # noqa: SIM115 - closed with the archive
    else:
        from mmcalib.locations.remote import open_url

        file, _ = open_url(path)
    with plain_errors():
        directory = zipfile.ZipFile(cast("Any", _Sparing(file)))
    return ZipArchive(file, directory, version, _shared(directory.filelist))


def _shared(members: Iterable[zipfile.ZipInfo]) -> frozenset[int]:
    """Where members begin that reach into others, or lie in them."""
    found: set[int] = set()
    begin, end = -1, 0
    for member in sorted(members, key=lambda member: member.header_offset):
        at = member.header_offset
        if at < end:
            found |= {begin, at}
        if (behind := at + _LOCAL_HEADER_BYTES + member.compress_size) > end:
            begin, end = at, behind
    return frozenset(found)


def open_item(item: Item, location: Location) -> Opened:
    """Raises OSError or ValueError, UsageError when a package is not installed."""
    if location.archive is None or location.member is None:
        raise ValueError("a zip archive without a member")
    archive = open_archive(location.archive, item.held.version if item.held else None)
    try:
        member = archive.directory.getinfo(member_name(location.member))
    except KeyError as error:
        raise FileNotFoundError(errno.ENOENT, "no such member") from error
    if why := archive.unreadable(member):
        raise OSError(errno.ENOTSUP, why)
    if member.compress_type == zipfile.ZIP_STORED:
        start = _data_offset(archive.file, member)
        stored = _Stored(archive.file, start, member.file_size)
        return Opened(cast("BinaryIO", io.BufferedReader(stored)), member.file_size)
    with plain_errors():
        inflated = _Inflated(cast("BinaryIO", archive.directory.open(member)), member.file_size)
    return Opened(foreign(inflated), member.file_size)


def _data_offset(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER_BYTES)
    if len(header) < _LOCAL_HEADER_BYTES or not header.startswith(_LOCAL_SIGNATURE):
        raise ValueError("the archive's directory leads nowhere")
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return member.header_offset + _LOCAL_HEADER_BYTES + lengths


class _Stored(Window):
    """A member that stands in the archive as it is; the archive stays open."""

    def close(self) -> None:
        io.RawIOBase.close(self)


class _Inflated(Window):
    """A compressed member; nothing is inflated until it is read."""

    def __init__(self, member: BinaryIO, size_bytes: int) -> None:
        super().__init__(member, 0, size_bytes)
        self._member, self._left_bytes = member, MOST_INFLATED_BYTES

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        done, start = self._member.tell(), self.tell()
        self._left_bytes -= len(buffer) + (start - done if start >= done else start)
        if self._left_bytes < 0:
            raise OSError(errno.EFBIG, f"over {MOST_INFLATED_BYTES >> 20} MiB to inflate")
        return super().readinto(buffer)


class _Sparing:
    """What `zipfile` reads an archive from; it would hold a directory of any length."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if size > MOST_DIRECTORY_BYTES:
            raise ValueError(f"directory of more than {MOST_DIRECTORY_BYTES >> 20} MiB")
        return self._file.read(size)

    def seekable(self) -> bool:
        return True
