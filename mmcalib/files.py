"""Writing results so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from mmcalib.errors import OutputError

# A temporary name must not be too long where the file's own just fits.
_PREFIX = 100
_AS = ("utf-8", "surrogateescape")


def write_text(path: Path, text: str) -> None:
    """Replace the file's content in one step. Raises OutputError; the old content then stays."""
    write_texts({path: text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Replace files that belong together. Raises OutputError; where one of them could not be
    filled, the old content of all stays.
    """
    waiting: dict[Path, str] = {}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting[path] = _beside(path, text.encode(*_AS))
        for path in texts:
            os.replace(waiting[path], path)
            del waiting[path]
    except (OSError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {path}: {why}", hint="--out another folder") from error
    finally:
        for name in waiting.values():
            _remove(name)


def _new(path: Path) -> tuple[int, str]:
    """A new file in the same folder, open, and its name."""
    return tempfile.mkstemp(prefix=f".{path.name[:_PREFIX]}.", dir=path.parent)


def _finish(file: BinaryIO, name: str) -> None:
    """All of it on the disk, for whom a new file is for."""
    file.flush()
    os.fsync(file.fileno())
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(name, 0o666 & ~umask)


def _beside(path: Path, content: bytes) -> str:
    """The name of a new file with this content, in the same folder."""
    handle, name = _new(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            _finish(file, name)
    except BaseException:
        _remove(name)
        raise
    return name


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)
