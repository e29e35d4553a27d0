"""Fsspec objects; optional libraries."""

from __future__ import annotations

import errno
import importlib
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, BinaryIO, cast

from mmcalib.domain.items import ByteSource, Item
from mmcalib.errors import MmcalibError, UsageError
from mmcalib.storage.location import (
    BEHIND,
    NOT_ALLOWED,
    NOT_REGULAR,
    Location,
    Opened,
    allowed_hosts,
    is_allowed,
    is_http,
)
from mmcalib.text import one_line

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)


def need(module: str, extra: str) -> Any:
    """Import an optional module. Raises UsageError when it is not installed, or does not load."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError):
            raise UsageError(one_line(f"{module} does not load here: {error}")) from error
        raise missing(module.partition(".")[0], extra) from error


def missing(package: str, extra: str) -> UsageError:
    """The error that says which extra brings `package`."""
    return UsageError(f"{package} is not installed", hint=f"pip install 'mmcalib[{extra}]'")


@contextmanager
def plain_errors(extra: str = "remote") -> Iterator[None]:
    """Make OSError, ValueError or, of a missing package, UsageError of what a library raises."""
    try:
        yield
    except FileNotFoundError as error:
        # fsspec says so of a web server whatever the server said.
        if error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError):
            raise
        with plain_errors(extra):
            raise error.__cause__ from error
    except (OSError, ValueError, MemoryError, MmcalibError):
        raise
    except ImportError as error:
        raise UsageError(one_line(str(error)), hint=f"pip install 'mmcalib[{extra}]'") from error
    except _DAMAGED as error:
        raise ValueError(str(error)) from error
    except NotImplementedError as error:
        raise ValueError(f"not supported: {error}") from error
    except Exception as error:
        # aiohttp, botocore and others have trees of their own.
        status = getattr(error, "status", None)
        said = f"the server answers {status}" if isinstance(status, int) else str(error)
        raise OSError(errno.EIO, one_line(said or type(error).__name__)) from error


class _Foreign(io.RawIOBase):
    """A library's file whose failures are plain, whenever they come."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with plain_errors():
            data = self._file.read(len(buffer))
        if len(data) > len(buffer):
            raise OSError(errno.EIO, "more bytes than were asked for")
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with plain_errors():
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def foreign(file: object) -> BinaryIO:
    """`file`, such as fsspec or zipfile make it, with plain errors. Small reads are gathered."""
    return cast("BinaryIO", io.BufferedReader(_Foreign(cast("BinaryIO", file))))


# Seconds in which a server must accept and go on, and then answer each request whole. Shorter than
# an item may take, so that a slow server costs its own item and no process.
CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 20.0

# Fetched beyond what is read: most headers of images fit, and FFmpeg reads by 32 KiB.
_BLOCK_BYTES = 1 << 16

# What a server sends in one piece only, because it knows no ranges, is held in memory up to this.
MOST_WHOLE_BYTES = 1 << 26

_ON_DISK = ("file", "local")

# The extra that brings the file system of a scheme; for all others it is `remote`.
_EXTRAS: Mapping[str, str] = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}


# Files are not larger, nor can they be sought further.
_LARGEST_BYTES = (1 << 63) - 1

# How file systems say that an object is still the one that it was, the surest first.
_TAGS = (
    *("ETag", "etag", "generation", "md5Hash", "content_hash", "LastModified", "last_modified"),
    *("Last-Modified", "mtime", "updated", "created"),
)


def open_item(item: Item, _: Location) -> Opened:
    """Raises OSError or ValueError, UsageError when a package is not installed."""
    file, size_bytes = open_url(item.path)
    return Opened(file, size_bytes)


def open_url(url: str) -> tuple[BinaryIO, int]:
    """A file that can be sought, and its size. Raises as `file_system` does."""
    fs, path = file_system(url)
    here = Location.of(url).scheme in _ON_DISK
    with plain_errors(extra_of(url)):
        if here and not os.path.isfile(path):
            # A pipe would be waited for.
            raise OSError(errno.EINVAL, NOT_REGULAR)
        file = fs.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
        if not file.seekable() or (is_http(url) and file.size is None):
            return _whole(file)
        size = getattr(file, "size", None)
        if not isinstance(size, int):
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
        if not isinstance(size, int) or size < 0:
            raise OSError(errno.EIO, "its server does not say how large it is")
    return foreign(file), size


def _whole(file: BinaryIO) -> tuple[BinaryIO, int]:
    data = bytearray()
    with file:
        while block := file.read(_BLOCK_BYTES):
            data += block
            if len(data) > MOST_WHOLE_BYTES:
                why = f"over {MOST_WHOLE_BYTES >> 20} MiB from a server that knows no ranges"
                raise OSError(errno.EFBIG, why)
    return io.BytesIO(data), len(data)


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for `url`, one per process, and the path in it.

    Raises OSError or ValueError, UsageError for an unknown scheme or a missing package.
    """
    scheme = Location.of(url).scheme or "file"
    fsspec = need("fsspec", "remote")
    if is_http(url) and not is_allowed(url):
        raise OSError(errno.EIO, NOT_ALLOWED)
    make: Callable[..., Any] = fsspec.filesystem
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise missing(f"fsspec's file system for {scheme}://", extra_of(url)) from error
    except ValueError as error:
        raise UsageError(
            f"no file system for {scheme}://", hint="such as s3://, gs://, https://"
        ) from error
    with plain_errors(extra_of(url)):
        options: dict[str, Any] = {}
        if scheme in ("s3", "s3a"):
            timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": TIMEOUT_S}
            options = {"config_kwargs": timeouts}
        elif is_http(url):
            options = {"client_kwargs": _client(allowed_hosts())}
        # Listings would be kept for ever.
        fs = make(scheme, use_listings_cache=False, **options)
        return fs, kind._strip_protocol(url)


@cache
def _client(hosts: frozenset[str]) -> dict[str, Any]:
    """How aiohttp asks: these hosts alone, also where one redirects, each answer in its time."""
    aiohttp = need("aiohttp", "remote")

    def refuse(url: Any, leads: str = "") -> None:
        """Raises OSError for a host that is not allowed, of a URL as aiohttp takes it apart."""
        if url.scheme not in ("http", "https") or url.host not in hosts:
            raise OSError(errno.EIO, one_line(f"{leads}{url}: {NOT_ALLOWED}"))

    async def judge_request(session: Any, context: Any, params: Any) -> None:
        refuse(params.url)

    async def judge_redirect(session: Any, context: Any, params: Any) -> None:
        headers = params.response.headers
        # Where aiohttp looks for it, too.
        to = headers.get("Location") or headers.get("URI") or ""
        refuse(params.url.join(type(params.url)(to)), "redirects to ")

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(judge_request)
    trace.on_request_redirect.append(judge_redirect)
    timeout = aiohttp.ClientTimeout(
        total=TIMEOUT_S, connect=CONNECT_TIMEOUT_S, sock_read=CONNECT_TIMEOUT_S
    )
    return {"trace_configs": [trace], "timeout": timeout, "trust_env": True}


def held(info: Mapping[str, Any]) -> ByteSource | None:
    """Size and ETag or time of an object in a listing of fsspec; None where it knows no size."""
    tag = next((info[key] for key in _TAGS if info.get(key)), None)
    size_bytes = info.get("size")
    if not isinstance(size_bytes, int) or not 0 <= size_bytes <= _LARGEST_BYTES:
        return None
    return ByteSource(f"{size_bytes}:{tag}" if tag else "", int(size_bytes))


def version_of(url: str) -> str:
    """The same for one object, asked for. Raises as `open_url` does."""
    fs, path = file_system(url)
    with plain_errors(extra_of(url)):
        found = held(fs.info(path))
    return found.version if found else ""


def extra_of(url: str) -> str:
    """The extra that brings what reads `url`."""
    return _EXTRAS.get(Location.of(url.rpartition(BEHIND)[2]).scheme or "", "remote")
