"""Locations of items: parse them, open them, copy them to files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import io
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import quote, urlsplit

from mmcalib.domain.items import Item
from mmcalib.domain.shapes import SIZE, is_size
from mmcalib.errors import OutputError
from mmcalib.processes import Closing
from mmcalib.text import MIB

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.ASCII)

# fsspec's separator between a member and its archive.
MEMBER_MARK = "::"


@dataclass(frozen=True, slots=True)
class Location:
    """The parts of an item's path. `tar://a/cat.jpg::s3://bucket/0001.tar` has the scheme `tar`,
    the member `a/cat.jpg` and the archive `s3://bucket/0001.tar`. All are None for a file.
    `size:640x480` has only the scheme.
    """

    path: str
    scheme: str | None = None
    member: str | None = None
    archive: str | None = None

    @classmethod
    def of(cls, path: str) -> Location:
        """Parse an `Item.path`."""
        scheme = _SCHEME.match(path)
        if path.startswith("/") or not scheme:
            return cls(path, SIZE) if is_size(path) else cls(path)
        member, mark, archive = path[scheme.end() :].partition(MEMBER_MARK)
        return cls(path, scheme[1], member, archive) if mark else cls(path, scheme[1])

    @property
    def is_file(self) -> bool:
        return self.scheme is None


def member_path(scheme: str, member: str, archive: str) -> str:
    """Return the path of a member; percent-encodes `%`, `::` and a final `:` in its name."""
    name = member.replace("%", "%25").replace(MEMBER_MARK, "%3A%3A")
    if name.endswith(":"):
        name = name[:-1] + "%3A"
    return f"{scheme}://{name}{MEMBER_MARK}{archive}"


def member_name(member: str) -> str:
    """Decode the `member` of a `Location`."""
    return member.replace("%3A", ":").replace("%25", "%")


def url_of(path: str) -> str:
    """Return the URL by which a request names the item at the absolute `path`."""
    return "file://" + quote(os.fsencode(path)) if path.startswith("/") else path


def is_local(path: str) -> bool:
    """True if the bytes are on this machine's file system, where reading them all is cheap."""
    return path.rpartition(MEMBER_MARK)[2].startswith("/")


NOT_ALLOWED = "its host is not in --allowed-media-domains"

_HOSTS: ContextVar[frozenset[str]] = ContextVar("allowed_hosts", default=frozenset())


@contextmanager
def allow_hosts(domains: Iterable[str]) -> Iterator[None]:
    """Let this thread also read from these hosts; each may be a comma-separated list."""
    names = (name for one in domains for name in one.lower().split(",") if name)
    before = _HOSTS.set(allowed_hosts().union(names))
    try:
        yield
    finally:
        _HOSTS.reset(before)


def allowed_hosts() -> frozenset[str]:
    """Return the allowed hosts in lowercase, without ports."""
    return _HOSTS.get()


def is_allowed(url: str) -> bool:
    """True if the URL's exact host or bucket is allowed."""
    try:
        return urlsplit(url).hostname in allowed_hosts()
    except ValueError:
        return False


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


NOT_REGULAR = "not a regular file"


def status_version(status: os.stat_result) -> str:
    """Return size and modification time as a version."""
    return f"{status.st_size}:{status.st_mtime_ns}"


_BLOCK_BYTES = MIB
# Media in requests may be confidential.
_PRIVATE = 0o700


def write_copy(source: BinaryIO, path: Path, size_bytes: int) -> str:
    """Write `size_bytes` of `source` to `path` atomically, and return the path with links resolved.
    Raises OutputError, and what reading raises.
    """
    partial = None
    try:
        path.parent.mkdir(_PRIVATE, parents=True, exist_ok=True)
        if (mode := os.stat(path.parent).st_mode) & ~_PRIVATE & 0o777:
            with contextlib.suppress(PermissionError):  # the folder may be another user's
                os.chmod(path.parent, mode & _PRIVATE)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        # With a buffer, a failed write would show up only on close.
        with os.fdopen(handle, "wb", buffering=0) as file:
            while block := source.read(min(_BLOCK_BYTES, size_bytes)):
                size_bytes -= len(block)
                try:
                    left = memoryview(block)
                    while left:
                        left = left[file.write(left) :]
                except OSError as error:
                    raise _unwritable(path, error) from error
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return os.path.realpath(path)


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot write a copy of media: {path}: {error.strerror}", hint="set MMCALIB_CACHE_DIR=DIR"
    )


# Archives and servers could send data forever. vLLM itself fetches at most 256 MB.
MAX_COPIED_BYTES = 1 << 32


@dataclass(slots=True)
class Opened(Closing):
    """The bytes of one item: a seekable `file`, which this closes. `path` is set if the item is a
    file of its own; `within` must stay open meanwhile.
    """

    file: BinaryIO
    size_bytes: int
    path: str | None = None
    within: object = None

    def close(self) -> None:
        self.file.close()


# Module and function that open each scheme, imported on demand. Other schemes are archives if the
# path has a member, else fsspec's file systems.
_OPENERS: Mapping[str, tuple[str, str]] = {
    "parquet": ("mmcalib.storage.tables", "open_cell"),
    "hf-dataset": ("mmcalib.storage.tables", "open_row"),
}
_MEMBER = ("mmcalib.storage.archive", "open_item")
_ANY = ("mmcalib.storage.remote", "open_item")


def open_item(item: Item) -> Opened:
    """Open an item. Raises OSError or ValueError if it is missing or damaged, UsageError if a
    library is not installed.
    """
    if item.byte_source and item.byte_source.data is not None:
        return Opened(io.BytesIO(item.byte_source.data), len(item.byte_source.data))
    location = Location.of(item.path)
    if location.is_file:
        file = cast("BinaryIO", open(item.path, "rb"))  # noqa: SIM115 - closed by `Opened`
        return Opened(file, os.fstat(file.fileno()).st_size, item.path)
    other = _ANY if location.archive is None else _MEMBER
    module, name = _OPENERS.get(location.scheme or "", other)
    opened: Opened = getattr(importlib.import_module(module), name)(item, location)
    return opened


def open_whole(path: str) -> tuple[str, Opened]:
    """Open a regular file or object, and return its version too. Raises as `open_item` does."""
    return path_version(path), open_item(Item(path))


def path_version(path: str) -> str:
    """Return the version of a regular file or object. Raises as `open_item` does."""
    if Location.of(path).is_file:
        status = os.stat(path)
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR)
        return status_version(status)
    from mmcalib.storage import remote

    return remote.version_of(path)


def local_copy(path: str, scratch: Path) -> str:
    """Path of the item, or of a copy in `scratch`. Raises as `open_item`, and OutputError."""
    if Location.of(path).is_file:
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()
    with open_item(Item(path)) as opened:
        if opened.size_bytes > MAX_COPIED_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_COPIED_BYTES >> 30} GiB, not copied")
        suffix = Path(path.partition(MEMBER_MARK)[0]).suffix
        return write_copy(opened.file, scratch / f"{name}{suffix}", opened.size_bytes)


# A file may change again within one tick of the clock that sets its time: milliseconds for the
# kernel, two seconds for file systems that store whole seconds.
_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_000_000_000
_SECOND_NS = 1_000_000_000


def item_version(item: Item) -> str:
    """Return size and time of a file, or the source's version; empty if a result cannot name it."""
    if is_size(item.path) or not is_utf8(item.path):
        return ""
    if item.byte_source is not None:
        return item.byte_source.version
    try:
        status = os.stat(item.path)
    except (OSError, ValueError):
        return ""
    return status_version(status) if stat.S_ISREG(status.st_mode) else ""


def is_utf8(path: str) -> bool:
    """True if the path is UTF-8, as results and requests must be."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_settled(version: str, now_ns: int) -> bool:
    """True if bytes that change after `now_ns` get another version."""
    mtime = version.rpartition(":")[2]
    if not mtime.isascii() or not mtime.isdigit():
        return True
    return now_ns - int(mtime) > (_TICK_NS if int(mtime) % _SECOND_NS else _COARSE_TICK_NS)
