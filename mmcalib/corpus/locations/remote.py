"""Reading what fsspec reaches: buckets, hosts, memory. Only the ranges asked for are fetched."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from mmcalib.corpus.item import Held, Item
from mmcalib.corpus.locations.disk import NOT_REGULAR
from mmcalib.corpus.locations.foreign import foreign, missing, need, plain_errors
from mmcalib.corpus.locations.location import BEHIND, Location
from mmcalib.corpus.locations.opening import Opened
from mmcalib.errors import UsageError

# Fetched beyond what is read: most headers of images fit, and FFmpeg reads by 32 KiB.
BLOCK_BYTES = 1 << 16

# Seconds in which a server must accept, and then answer each request whole.
CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 30.0

_ON_DISK = ("file", "local")

# What a server sends in one piece only, because it knows no ranges, is held in memory up to this.
MOST_WHOLE_BYTES = 1 << 26

# The extra that brings the file system of a scheme; for all others it is `remote`.
_EXTRAS: Mapping[str, str] = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}


# How file systems say that an object is still the one that it was, the surest first.
_TAGS = (
    *("ETag", "etag", "generation", "md5Hash", "content_hash", "LastModified", "last_modified"),
    *("mtime", "updated", "created"),
)


def open_item(item: Item, location: Location) -> Opened:
    """Raises OSError or ValueError, UsageError when a package is not installed."""
    if location.archive is not None:
        raise ValueError(f"no archive of this kind: {location.scheme}")
    file, size_bytes = open_url(item.path, item.held.size_bytes if item.held else None)
    return Opened(file, size_bytes)


def open_url(url: str, size_bytes: int | None = None) -> tuple[BinaryIO, int]:
    """A file that can be sought, and its size, which is asked for where it is not given.

    Raises OSError or ValueError, UsageError when a package is not installed.
    """
    fs, path = file_system(url)
    scheme = Location.of(url).scheme
    with plain_errors(extra_of(url)):
        if scheme in _ON_DISK and not os.path.isfile(path):
            # A pipe would be waited for.
            raise OSError(errno.EINVAL, NOT_REGULAR)
        # Other file systems may not take a size.
        known = {"size": size_bytes} if size_bytes and _is_http(url) else {}
        file = fs.open(path, "rb", block_size=BLOCK_BYTES, cache_type="readahead", **known)
        # fsspec's web stream says that it can be sought, and has no size.
        if not file.seekable() or getattr(file, "size", 0) is None:
            return _whole(file)
        size = getattr(file, "size", None)
        if not isinstance(size, int):
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
    return foreign(file), size


def _whole(file: BinaryIO) -> tuple[BinaryIO, int]:
    data = bytearray()
    with file:
        while block := file.read(BLOCK_BYTES):
            data += block
            if len(data) > MOST_WHOLE_BYTES:
                why = f"over {MOST_WHOLE_BYTES >> 20} MiB from a server that knows no ranges"
                raise OSError(errno.EFBIG, why)
    return io.BytesIO(data), len(data)


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for `url`, one per process, and the path in it.

    Raises UsageError for an unknown scheme or a missing package, and OSError or ValueError.
    """
    scheme = Location.of(url).scheme or "file"
    fsspec = need("fsspec", "remote")
    make: Callable[..., Any] = fsspec.filesystem
    if _is_http(url):
        need("aiohttp", "remote")
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise missing(f"fsspec's file system for {scheme}://", extra_of(url)) from error
    except ValueError as error:
        raise UsageError(
            f"no file system for {scheme}://", hint="such as s3://, gs://, https://, zip://"
        ) from error
    with plain_errors(extra_of(url)):
        # Listings would be kept for ever.
        fs = make(scheme, use_listings_cache=False, **_options(scheme))
        return fs, kind._strip_protocol(url)


def _options(scheme: str) -> dict[str, Any]:
    if scheme in ("http", "https"):
        aiohttp = need("aiohttp", "remote")
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        return {"client_kwargs": {"timeout": timeout, "trust_env": True}}
    if scheme in ("s3", "s3a"):
        timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": TIMEOUT_S}
        return {"config_kwargs": timeouts}
    return {}


def held(info: Mapping[str, Any]) -> Held:
    """What a listing of fsspec says of one object: its size, and an ETag or a time."""
    tag = next((info[key] for key in _TAGS if info.get(key)), None)
    size_bytes = int(info["size"] or 0)
    return Held(f"{size_bytes}:{tag}" if tag else "", size_bytes)


def version_of(url: str) -> str:
    """The same for one object, asked for. Raises as `open_url` does."""
    fs, path = file_system(url)
    with plain_errors(extra_of(url)):
        return held(fs.info(path)).version


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def extra_of(url: str) -> str:
    """The extra that brings what reads `url`."""
    return _EXTRAS.get(Location.of(url.rpartition(BEHIND)[2]).scheme or "", "remote")
