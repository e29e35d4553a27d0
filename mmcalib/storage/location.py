"""Locations of items: their parts, the hosts that may be asked, and versions."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import quote, urlsplit

from mmcalib.domain.items import Item
from mmcalib.domain.shapes import SIZE, is_size
from mmcalib.processes import Closing

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


def file_version(path: str) -> str:
    """Return size and modification time of a regular file as a version. Raises OSError."""
    status = os.stat(path)
    # Opening a pipe would wait for a writer.
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR)
    return f"{status.st_size}:{status.st_mtime_ns}"


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
        return file_version(item.path)
    except (OSError, ValueError):
        return ""


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
