"""Open items wherever they are, and copy them to files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import io
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

from mmcalib.domain.items import Item
from mmcalib.errors import OutputError
from mmcalib.storage.location import MEMBER_MARK, Location, Opened, file_version
from mmcalib.text import MIB

_BLOCK_BYTES = MIB
# Media in requests may be confidential.
_PRIVATE = 0o700


def write_copy(source: BinaryIO, path: Path, size_bytes: int) -> str:
    """Write `size_bytes` of `source` to `path` atomically, and return the path with links resolved.
    Raises OutputError, and what reading raises.
    """
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


# The schemes of cells of tables. Others are archives if the path has a member, else fsspec's file
# systems.
CELL_SCHEMES = ("parquet", "hf-dataset")


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
    opener = "remote" if location.archive is None else "archive"
    opener = "tables" if location.scheme in CELL_SCHEMES else opener
    opened: Opened = importlib.import_module(f"mmcalib.storage.{opener}").open_item(item, location)
    return opened


def open_whole(path: str) -> tuple[str, Opened]:
    """Open a regular file or object, and return its version too. Raises as `open_item` does."""
    return path_version(path), open_item(Item(path))


def path_version(path: str) -> str:
    """Return the version of a regular file or object. Raises as `open_item` does."""
    if Location.of(path).is_file:
        return file_version(path)
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
