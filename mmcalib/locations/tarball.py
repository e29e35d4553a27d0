"""The members of a tar archive, as it is or gzipped, by one pass over their headers.

Nothing is extracted. An archive is foreign: no header makes it be read without end, held in memory
or followed anywhere.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO, cast

from mmcalib.closing import Closing
from mmcalib.locations.disk import NOT_REGULAR, version_of
from mmcalib.locations.file_slice import Window
from mmcalib.locations.location import Location
from mmcalib.sizes import MIB
from mmcalib.wording import one_line

# What `tarfile` raises on damaged headers, its own errors apart.
_ERRORS = (
    tarfile.TarError,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    zlib.error,
)
_GZIP = b"\x1f\x8b"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

# Long names and extended headers take some KiB; `tarfile` reads as much as the archive says, and
# headers of headers, all of which it holds, before it comes to a member.
_LONGEST_HEADER_BYTES = MIB
# A member has some ten fields. Global ones are copied for each member after them.
_MOST_FIELDS = 1000
_TOO_MANY = f"header of more than {_MOST_FIELDS} fields"
# `tarfile` searches headers for numbers with a time that is the square of their length.
_LONG_NUMBER = re.compile(rb"\d{100}")
# PATH_MAX of Linux.
_LONGEST_NAME = 4096
# Media hardly shrink. Beyond the first megabytes, more than this is a bomb.
_MOST_INFLATED = 100
_FREELY_INFLATED_BYTES = 1 << 26
_STEP_BYTES = 1 << 22


class Damaged(ValueError):  # noqa: N818 - a value in flight, turned into `Skipped`
    """The archive cannot be read any further; the message says why."""


class Tar(Closing):
    """An archive that is open for one pass. Raises as `TarArchive` does.

    `version` changes when the archive does; `compressed` members have no place of their own.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        archive = TarArchive(path)
        self.version, self.size_bytes = archive.version, archive.size_bytes
        self._raw = archive.part(0, archive.size_bytes)
        self._magic = self._raw.read(6)
        self._raw.seek(0)
        self.compressed = self._magic.startswith(_GZIP)
        inflated = cast("BinaryIO", gzip.GzipFile(fileobj=self._raw)) if self.compressed else None
        self._file = _Inflated(inflated, self._raw) if inflated else _Guarded(self._raw)

    def close(self) -> None:
        self._raw.close()

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Every member, in order, whatever it is. Raises Damaged where the archive is."""
        for magic, name in _OTHERS.items():
            if self._magic.startswith(magic):
                raise Damaged(f"compressed with {name}: only gzip is read")
        at, first = 0, True
        try:
            tar = tarfile.TarFile(
                fileobj=cast("IO[bytes]", self._file),
                tarinfo=_Header,
                encoding="utf-8",
                errors="surrogateescape",
            )
            while (member := tar.next()) is not None:
                self._file.next_header()
                # Every member would be kept.
                tar.members = []  # type: ignore[attr-defined]
                if len(tar.pax_headers) > _MOST_FIELDS:
                    raise tarfile.ReadError(_TOO_MANY)
                if len(member.name) > _LONGEST_NAME:
                    raise tarfile.ReadError(f"name of more than {_LONGEST_NAME} characters")
                if tar.offset <= at:
                    raise tarfile.ReadError("header with a negative size")
                first = False
                if member.isreg() and not self._holds(member):
                    raise tarfile.ReadError(f"it ends within {member.name}")
                at = tar.offset
                yield member
        except _ERRORS as error:
            raise Damaged(_words(error, at, first=first)) from error

    def read(self, member: tarfile.TarInfo, most_bytes: int) -> bytes:
        """The first bytes of the member that was yielded last; called at most once for it, because
        compressed ones are read forward only. Raises Damaged.
        """
        wanted = min(member.size, most_bytes)
        if not wanted:
            return b""
        try:
            self._file.seek(member.offset_data)
            data = self._file.take(wanted)
        except _ERRORS as error:
            raise Damaged(_words(error, member.offset, first=False)) from error
        if len(data) < wanted:
            raise Damaged(one_line(f"damaged: it ends within {member.name}"))
        return data

    def _holds(self, member: tarfile.TarInfo) -> bool:
        end = member.offset_data + (0 if member.issparse() else member.size)
        return self.compressed or end <= self.size_bytes


class TarArchive:
    """A file or what a URL leads to, read at any place by any number of readers.

    It is closed when nobody has it any more. Raises OSError or ValueError when it cannot be opened,
    UsageError when a package for it is not installed.
    """

    def __init__(self, path: str) -> None:
        self.file: BinaryIO | None = None
        self._reader: type[_Part | _RemotePart] = _Part
        if not Location.of(path).is_file:
            from mmcalib.locations import remote

            self._reader, self.version = _RemotePart, remote.version_of(path)
            self.file, self.size_bytes = remote.open_url(path)
            return
        # Opening a FIFO would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(None, NOT_REGULAR)
        self.file = cast("BinaryIO", open(path, "rb", buffering=0))  # noqa: SIM115
        status = os.fstat(self.file.fileno())
        self.version = version_of(status)
        self.size_bytes = status.st_size

    def part(self, start: int, size_bytes: int) -> BinaryIO:
        """Some of its bytes, as a file."""
        return cast("BinaryIO", io.BufferedReader(self._reader(self, start, size_bytes)))

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class _RemotePart(Window):
    """Keeps the archive open."""

    def __init__(self, archive: TarArchive, start: int, size_bytes: int) -> None:
        super().__init__(cast("BinaryIO", archive.file), start, size_bytes)
        self._archive = archive


class _Part(_RemotePart):
    """Readers do not disturb each other, not even from several threads."""

    def __init__(self, archive: TarArchive, start: int, size_bytes: int) -> None:
        super().__init__(archive, start, size_bytes)
        self._fd = self._file.fileno()

    def read_at(self, offset: int, into: memoryview) -> int:
        return os.preadv(self._fd, [into], offset)


def is_file(member: tarfile.TarInfo) -> bool:
    """Whether its bytes stand in the archive as they are."""
    return member.isreg() and not member.issparse()


def _words(error: Exception, at: int, *, first: bool) -> str:
    if isinstance(error, EOFError):
        return "damaged: its compressed data ends too early"
    if first and not isinstance(error, OSError | zlib.error):
        return "empty file" if isinstance(error, _Empty) else "not a tar archive"
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return one_line(f"damaged at byte {at}: {said}")


class _Empty(tarfile.ReadError):
    """There is no header at all."""


class _Header(tarfile.TarInfo):
    """`TarFile.next` takes a damaged header for the end of the archive; this one tells."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Of a plain file only what counts, in half of the time; all else is left to `tarfile`."""
        size, checksum, prefix = buf[124:135], buf[148:154], buf[345:500].partition(b"\0")[0]
        plain = len(buf) == tarfile.BLOCKSIZE and buf[156:157] == tarfile.REGTYPE
        if not (plain and size.isdigit() and checksum.isdigit()):
            return super().frombuf(buf, encoding, errors)
        if int(checksum, 8) != sum(buf) - sum(buf[148:156]) + 8 * ord(" "):
            return super().frombuf(buf, encoding, errors)
        name = buf[:100].partition(b"\0")[0]
        header = cls((prefix + b"/" + name if prefix else name).decode(encoding, errors))
        header.size = int(size, 8)
        return header

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.EmptyHeaderError as error:  # type: ignore[attr-defined]
            raise _Empty("it has no end mark: its tail may be missing") from error
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


class _Guarded:
    """What `tarfile` needs of a file, with a bound on what the headers of a member may have it
    read, and make of it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.tell = file.tell
        self.take: Callable[[int], bytes] = file.read
        self.seek: Callable[..., int] = file.seek
        self.next_header()

    def next_header(self) -> None:
        self._left_bytes = _LONGEST_HEADER_BYTES

    def read(self, size: int) -> bytes:
        self._left_bytes -= size
        if size < 0 or self._left_bytes < 0:
            raise tarfile.ReadError(f"header of more than {_LONGEST_HEADER_BYTES >> 20} MiB")
        data = self.take(size)
        if size > tarfile.BLOCKSIZE:
            if min(data.count(b"="), data.count(b"\n")) > _MOST_FIELDS:
                raise tarfile.ReadError(_TOO_MANY)
            if _LONG_NUMBER.search(data):
                raise tarfile.ReadError("header with a number of a hundred digits")
        return data


class _Inflated(_Guarded):
    """The same for a gzipped one, which must not inflate beyond reason."""

    def __init__(self, file: BinaryIO, raw: BinaryIO) -> None:
        super().__init__(file)
        self._file, self._raw = file, raw
        self.take, self.seek = self._take, self._seek

    def _take(self, size: int) -> bytes:
        parts = []
        while size > 0 and (part := self._file.read(min(size, _STEP_BYTES))):
            parts.append(part)
            size -= len(part)
            self._check()
        return b"".join(parts)

    def _seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        while whence == io.SEEK_SET and self.tell() < position:
            before = self.tell()
            self._file.seek(min(position, before + _STEP_BYTES))
            self._check()
            if self.tell() == before:
                break
        return self.tell()

    def _check(self) -> None:
        if self.tell() > _FREELY_INFLATED_BYTES + _MOST_INFLATED * self._raw.tell():
            raise tarfile.ReadError(f"it inflates to more than {_MOST_INFLATED} times its size")
