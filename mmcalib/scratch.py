"""A folder for what ends with this process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from mmcalib.closing import Closing
from mmcalib.errors import OutputError

_PREFIX = "mmcalib-scratch-"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}", re.ASCII)
_TRIES = 100


class Scratch(Closing):
    """A new folder of this user's alone below TMPDIR, at `path`; removed when closed or when the
    process ends. What processes that were killed have left is removed first.

    As long as the process lives it holds a lock on the folder, which the kernel takes back from
    the dead. Raises OutputError.
    """

    def __init__(self) -> None:
        try:
            _sweep(tempfile.gettempdir())
            self._folder, self._lock = _made()
        except OSError as error:
            raise OutputError(
                f"no folder for temporary files: {error.strerror}",
                hint="export TMPDIR=/a/folder/that/is/yours",
            ) from error
        self.path = Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()
        # Let go of first: an interrupt after the closing must not close it again.
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _made() -> tuple[tempfile.TemporaryDirectory[str], int | None]:
    """A folder and what holds its lock; None on file systems without locks, where none is swept."""
    for _ in range(_TRIES):
        folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        lock = None
        try:
            lock = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(folder.name):
                return folder, lock
        except (BlockingIOError, FileNotFoundError):
            pass  # another process has just taken it for one that was left
        except OSError:
            if lock is not None:
                os.close(lock)
            return folder, None
        if lock is not None:
            os.close(lock)
    raise OSError(None, "they are removed as they are made")


def _sweep(parent: str) -> None:
    """Remove folders whose process is gone; nothing of another user's, and through no link."""
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if _OURS.fullmatch(entry.name)]
    for name in names:
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(handle)
                if (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), stat.S_IRWXU):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(handle)
