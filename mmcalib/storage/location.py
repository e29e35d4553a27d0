"""Where bytes are; open them; local copies."""

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
from mmcalib.errors import OutputError
from mmcalib.processes import Closing
from mmcalib.text import MIB

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.ASCII)

# fsspec's mark between a member and the archive that holds it.
BEHIND = "::"


@dataclass(frozen=True, slots=True)
class Location:
    """`tar://a/cat.jpg::s3://bucket/0001.tar` has the scheme `tar`, the member `a/cat.jpg` and the
    archive `s3://bucket/0001.tar`; the path of a file has none of them.
    """

    path: str
    scheme: str | None = None
    member: str | None = None
    archive: str | None = None

    @classmethod
    def of(cls, path: str) -> Location:
        """Take apart what `Item.path` says."""
        found = _SCHEME.match(path)
        if path.startswith("/") or not found:
            return cls(path)
        member, mark, archive = path[found.end() :].partition(BEHIND)
        return cls(path, found[1], member, archive) if mark else cls(path, found[1])

    @property
    def is_file(self) -> bool:
        return self.scheme is None


def inside(scheme: str, member: str, archive: str) -> str:
    """The location of a member; `%`, `::` and a last `:` of its name are percent-encoded."""
    name = member.replace("%", "%25").replace(BEHIND, "%3A%3A")
    if name.endswith(":"):
        name = name[:-1] + "%3A"
    return f"{scheme}://{name}{BEHIND}{archive}"


def member_name(member: str) -> str:
    """The reverse, for the `member` of a `Location`."""
    return member.replace("%3A", ":").replace("%25", "%")


def url_of(path: str) -> str:
    """What a request would name the item at `path`, which is absolute."""
    return "file://" + quote(os.fsencode(path)) if path.startswith("/") else path


def is_here(path: str) -> bool:
    """Whether the bytes are on a file system of this machine, so that reading them all is cheap."""
    return path.rpartition(BEHIND)[2].startswith("/")


NOT_ALLOWED = "its host is not one of --allowed-media-domains"

_HOSTS: ContextVar[frozenset[str]] = ContextVar("allowed_hosts", default=frozenset())


@contextmanager
def allowing(domains: Iterable[str]) -> Iterator[None]:
    """Let this thread read from these hosts, too; each may be several with commas between."""
    names = (name for one in domains for name in one.lower().split(",") if name)
    before = _HOSTS.set(allowed_hosts().union(names))
    try:
        yield
    finally:
        _HOSTS.reset(before)


def allowed_hosts() -> frozenset[str]:
    """In small letters, without ports."""
    return _HOSTS.get()


def is_allowed(url: str) -> bool:
    """By the very name of its host, or bucket."""
    try:
        return urlsplit(url).hostname in allowed_hosts()
    except ValueError:
        return False


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


NOT_REGULAR = "not a regular file"


def status_version(status: os.stat_result) -> str:
    """Size and time of modification."""
    return f"{status.st_size}:{status.st_mtime_ns}"


def regular_version(path: str) -> str:
    """The version of a regular file, which is not opened. Raises OSError for anything else."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR)
    return status_version(status)


_BLOCK_BYTES = MIB
# Requests carry what nobody else is meant to see.
_PRIVATE = 0o700


def keep(source: BinaryIO, path: Path, size_bytes: int) -> str:
    """Write so many bytes of `source` to `path`, whole or not at all; returns it, links resolved.
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
        # What a buffer holds back would fail only when the file is closed.
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
        f"cannot write a copy of media: {path}: {error.strerror}", hint="MMCALIB_CACHE_DIR=DIR"
    )


# Of a medium that is no file of its own; vLLM itself fetches 256 MB at most. Any server can say
# that it has more, and send it for ever.
MOST_COPIED_BYTES = 1 << 32


@dataclass(slots=True)
class Opened(Closing):
    """The bytes of one item; `file` can be sought, and is closed with it. `path` is set where they
    are a file of their own, and `within` must stay open meanwhile.
    """

    file: BinaryIO
    size_bytes: int
    path: str | None = None
    within: object = None

    def close(self) -> None:
        self.file.close()


# What reads each scheme, loaded when it is met. Any other scheme is an archive's where it names a
# member, else one of fsspec's file systems.
_OPENERS: Mapping[str, tuple[str, str]] = {
    "parquet": ("mmcalib.storage.tables", "open_cell"),
    "hf-dataset": ("mmcalib.storage.tables", "open_row"),
}
_MEMBER = ("mmcalib.storage.archive", "open_item")
_ANY = ("mmcalib.storage.remote", "open_item")


def open_item(item: Item) -> Opened:
    """Open an item that is no file of its own. Raises OSError or ValueError when it is gone or
    damaged, UsageError when what reads it is not installed.
    """
    if item.held and item.held.data is not None:
        return Opened(io.BytesIO(item.held.data), len(item.held.data))
    location = Location.of(item.path)
    if location.is_file:
        file = cast("BinaryIO", open(item.path, "rb"))  # noqa: SIM115 - closed by `Opened`
        return Opened(file, os.fstat(file.fileno()).st_size, item.path)
    other = _ANY if location.archive is None else _MEMBER
    module, name = _OPENERS.get(location.scheme or "", other)
    opened: Opened = getattr(importlib.import_module(module), name)(item, location)
    return opened


def open_whole(path: str) -> tuple[str, BinaryIO, int]:
    """The version of a file or an object, its bytes and its size. Raises as `open_item` does."""
    if Location.of(path).is_file:
        version = regular_version(path)
        file = cast("BinaryIO", open(path, "rb"))  # noqa: SIM115 - closed by who asked
        return version, file, os.fstat(file.fileno()).st_size
    from mmcalib.storage.remote import open_url

    version = path_version(path)
    return version, *open_url(path)


def path_version(path: str) -> str:
    """The version alone. Raises the same."""
    if Location.of(path).is_file:
        return regular_version(path)
    from mmcalib.storage import remote

    return remote.version_of(path)


def local_copy(path: str, scratch: Path) -> str:
    """The path of a file with the bytes of the item: itself, or a copy in `scratch`, which each
    process makes anew. Raises as `open_item` does, and OutputError.
    """
    if Location.of(path).is_file:
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()
    with open_item(Item(path)) as opened:
        if opened.size_bytes > MOST_COPIED_BYTES:
            raise OSError(errno.EFBIG, f"more than {MOST_COPIED_BYTES >> 30} GiB, not copied")
        suffix = Path(path.partition(BEHIND)[0]).suffix
        return keep(opened.file, scratch / f"{name}{suffix}", opened.size_bytes)


# A file may change again within one tick of the clock that its time is taken from: of the kernel,
# some milliseconds; of file systems that keep whole seconds, two.
_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_000_000_000
_SECOND_NS = 1_000_000_000


def version(item: Item) -> str:
    """Size and time of a file, or what the source says; empty of what no result could name."""
    if not in_unicode(item.path):
        return ""
    if item.held is not None:
        return item.held.version
    try:
        status = os.stat(item.path)
    except (OSError, ValueError):
        return ""
    return status_version(status) if stat.S_ISREG(status.st_mode) else ""


def in_unicode(path: str) -> bool:
    """Results are UTF-8, and so are the requests that would name the file."""
    if path.isascii():
        return True
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_settled(version: str, now_ns: int) -> bool:
    """Whether bytes that change from `now_ns` on would have another version."""
    mtime = version.rpartition(":")[2]
    if not mtime.isascii() or not mtime.isdigit():
        return True
    tick_ns = _TICK_NS if int(mtime) % _SECOND_NS else _COARSE_TICK_NS
    return now_ns - int(mtime) > tick_ns
