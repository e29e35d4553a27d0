"""Open remote objects through fsspec, and import optional libraries."""

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
    MEMBER_MARK,
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


def import_optional(module: str, extra: str) -> Any:
    """Import an optional module. Raises UsageError if it is not installed or fails to load."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError):
            raise UsageError(one_line(f"{module} fails to load: {error}")) from error
        raise missing_package(module.partition(".")[0], extra) from error


def missing_package(package: str, extra: str) -> UsageError:
    """Return the error that names the extra with `package`."""
    return UsageError(f"{package} is not installed", hint=f"pip install 'mmcalib[{extra}]'")


@contextmanager
def translate_errors(extra: str = "remote") -> Iterator[None]:
    """Turn a library's errors into OSError or ValueError, and a missing package into UsageError."""
    try:
        yield
    except FileNotFoundError as error:
        # fsspec raises it for any error of a web server.
        if error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError):
            raise
        with translate_errors(extra):
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
        # aiohttp, botocore and others have error classes of their own.
        status = getattr(error, "status", None)
        message = f"the server answers {status}" if isinstance(status, int) else str(error)
        raise OSError(errno.EIO, one_line(message or type(error).__name__)) from error


class _Foreign(io.RawIOBase):
    """A library's file that raises plain errors. `read_whole` is for servers without ranges."""

    def __init__(self, file: BinaryIO, read_whole: Callable[[], BinaryIO] | None = None) -> None:
        self._file, self._read_whole = file, read_whole

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with translate_errors():
            try:
                data = self._file.read(len(buffer))
            except ValueError:
                if self._read_whole is None:
                    raise
                offset, self._file = self._file.tell(), self._read_whole()
                self._file.seek(offset)
                data = self._file.read(len(buffer))
        if len(data) > len(buffer):
            raise OSError(errno.EIO, "the server sent more bytes than requested")
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with translate_errors():
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


def wrap_file(file: object, read_whole: Callable[[], BinaryIO] | None = None) -> BinaryIO:
    """Wrap a file of fsspec or zipfile to buffer reads and raise plain errors."""
    return cast("BinaryIO", io.BufferedReader(_Foreign(cast("BinaryIO", file), read_whole)))


# Seconds in which a server must connect and send more, and then finish each answer. Shorter than an
# item's timeout, so that a slow server costs one item and no worker process.
CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 20.0

# Bytes per fetch: most image headers fit, and FFmpeg reads 32 KiB at a time.
_BLOCK_BYTES = 1 << 16

# Limit in memory for an object from a server without range requests.
MOST_WHOLE_BYTES = 1 << 26

_ON_DISK = ("file", "local")

# The extra with the file system of a scheme; it is `remote` for all others.
_EXTRAS: Mapping[str, str] = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}

# The largest size and offset of a file.
_LARGEST_BYTES = (1 << 63) - 1

# Fields that show whether an object changed, the most reliable first.
_TAGS = (
    *("ETag", "etag", "generation", "md5Hash", "content_hash", "LastModified", "last_modified"),
    *("Last-Modified", "mtime", "updated", "created"),
)


def open_item(item: Item, location: Location) -> Opened:
    """Open an object. Raises as `file_system` does."""
    url = item.path
    fs, path = file_system(url)
    is_local = location.scheme in _ON_DISK
    with translate_errors(extra_of(url)):
        if is_local and not os.path.isfile(path):
            # Opening a pipe would wait for a writer.
            raise OSError(errno.EINVAL, NOT_REGULAR)
        file = fs.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
        if not file.seekable() or (is_http(url) and file.size is None):
            return Opened(*_whole(file))
        size = getattr(file, "size", None)
        if not isinstance(size, int):
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
        if not isinstance(size, int) or size < 0:
            raise OSError(errno.EIO, "the server does not send its size")
    read_whole = (lambda: _whole(fs.open(path, "rb", block_size=0))[0]) if is_http(url) else None
    return Opened(wrap_file(file, read_whole), size)


def _whole(file: BinaryIO) -> tuple[BinaryIO, int]:
    data = bytearray()
    with file:
        while block := file.read(_BLOCK_BYTES):
            data += block
            if len(data) > MOST_WHOLE_BYTES:
                size = f"larger than {MOST_WHOLE_BYTES >> 20} MiB"
                raise OSError(errno.EFBIG, f"{size}, from a server without range requests")
    return io.BytesIO(data), len(data)


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for `url`, one per process, and the path in it.

    Raises OSError or ValueError, and UsageError for an unknown scheme or a missing package.
    """
    scheme = Location.of(url).scheme or "file"
    fsspec = import_optional("fsspec", "remote")
    if is_http(url) and not is_allowed(url):
        raise OSError(errno.EIO, NOT_ALLOWED)
    make: Callable[..., Any] = fsspec.filesystem
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise missing_package(f"fsspec's file system for {scheme}://", extra_of(url)) from error
    except ValueError as error:
        raise UsageError(
            f"unsupported scheme: {scheme}://", hint="use s3://, gs://, https:// or similar"
        ) from error
    with translate_errors(extra_of(url)):
        options: dict[str, Any] = {}
        if scheme in ("s3", "s3a"):
            timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": TIMEOUT_S}
            options = {"config_kwargs": timeouts}
        elif is_http(url):
            options = {"client_kwargs": _client(allowed_hosts())}
        # fsspec would cache listings forever.
        return make(scheme, use_listings_cache=False, **options), kind._strip_protocol(url)


@cache
def _client(hosts: frozenset[str]) -> dict[str, Any]:
    """Return options that restrict aiohttp to these hosts, after redirects too, and to timeouts."""
    aiohttp = import_optional("aiohttp", "remote")

    def check_host(url: Any, prefix: str = "") -> None:
        """Raises OSError if the host of aiohttp's `url` is not allowed."""
        if url.scheme not in ("http", "https") or url.host not in hosts:
            raise OSError(errno.EIO, one_line(f"{prefix}{url}: {NOT_ALLOWED}"))

    async def check_request(session: Any, context: Any, params: Any) -> None:
        check_host(params.url)

    async def check_redirect(session: Any, context: Any, params: Any) -> None:
        headers = params.response.headers
        # The same headers that aiohttp reads.
        to = headers.get("Location") or headers.get("URI") or ""
        check_host(params.url.join(type(params.url)(to)), "redirects to ")

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(check_request)
    trace.on_request_redirect.append(check_redirect)
    timeout = aiohttp.ClientTimeout(
        total=TIMEOUT_S, connect=CONNECT_TIMEOUT_S, sock_read=CONNECT_TIMEOUT_S
    )
    return {"trace_configs": [trace], "timeout": timeout, "trust_env": True}


def listed_source(info: Mapping[str, Any]) -> ByteSource | None:
    """Return size and ETag or time of an object in fsspec's listing; None without a size."""
    tag = next((info[key] for key in _TAGS if info.get(key)), None)
    size_bytes = info.get("size")
    if not isinstance(size_bytes, int) or not 0 <= size_bytes <= _LARGEST_BYTES:
        return None
    return ByteSource(f"{size_bytes}:{tag}" if tag else "", int(size_bytes))


def version_of(url: str) -> str:
    """Fetch the version of an object; empty if it has none. Raises as `file_system` does."""
    fs, path = file_system(url)
    with translate_errors(extra_of(url)):
        source = listed_source(fs.info(path))
    return source.version if source else ""


def extra_of(url: str) -> str:
    """Return the extra with the packages that read `url`."""
    return _EXTRAS.get(Location.of(url.rpartition(MEMBER_MARK)[2]).scheme or "", "remote")
