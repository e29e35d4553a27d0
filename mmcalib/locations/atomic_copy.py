"""Copies of media that are no files of their own, kept for what reads files only."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from mmcalib.errors import OutputError
from mmcalib.sizes import MIB

_BLOCK_BYTES = MIB
# Requests carry what nobody else is meant to see.
_PRIVATE = 0o700


def keep(source: BinaryIO, path: Path, size_bytes: int) -> str:
    """Write so many bytes of `source` to `path`, which is returned with links resolved.

    The file appears whole or not at all, in place of an older one. Raises OutputError, and what
    reading raises.
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
