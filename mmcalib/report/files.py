"""Writing results so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from mmcalib.errors import OutputError

# A temporary name must not be too long where the file's own just fits.
_PREFIX = 100


def write_text(path: Path, text: str) -> None:
    """Replace the file's content in one step. Raises OutputError; the old content then stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text.encode("utf-8", errors="surrogateescape"))
    except (OSError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {path}: {why}", hint="--out another folder") from error


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:_PREFIX]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
