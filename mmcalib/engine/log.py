"""The log of an engine process, read while it grows."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mmcalib.closing import Closing
from mmcalib.scratch import Scratch

_KEPT = "mmcalib-engine-"
# Of the logs that errors pointed to, as many stay for a day.
_MOST_KEPT = 5
_KEPT_S = 24 * 60 * 60


class ChildLog(Closing):
    """Where a child writes: the file at `path`, or one that goes when this process does."""

    def __init__(self, path: Path | None) -> None:
        self._scratch = Scratch() if path is None else None
        _remove_older(Path(tempfile.gettempdir()))
        self.path = self._scratch.path / "engine.log" if self._scratch else Path(path or "")
        self.path.touch()
        self._kept: Path | None = None if self._scratch else self.path

    def kept(self) -> Path | None:
        """The file under a name that stays, for an error that points to it; of such names the
        newest stay. None where nothing is in it.
        """
        if self._kept is None and self.path.stat().st_size:
            folder = Path(tempfile.mkdtemp(prefix=_KEPT))
            _remove_older(folder.parent)
            self._kept = folder / self.path.name
            try:
                os.link(self.path, self._kept)
            except OSError:  # a file system without such names
                shutil.copyfile(self.path, self._kept)
        return self._kept

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
            self.path = self._kept or self.path


def _remove_older(folder: Path) -> None:
    """Of this user's, all but the newest, and those of earlier days."""
    kept: list[tuple[float, Path]] = []
    for path in folder.glob(f"{_KEPT}*"):
        with contextlib.suppress(OSError):  # another process removes them too
            status = path.lstat()
            if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode):
                kept.append((status.st_mtime, path))
    kept.sort(reverse=True)
    since = time.time() - _KEPT_S
    for _, path in [*kept[_MOST_KEPT:], *(one for one in kept[:_MOST_KEPT] if one[0] < since)]:
        shutil.rmtree(path, ignore_errors=True)


class LogTail:
    """Hands every finished line that is written from now on to `on_line`, once."""

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._path, self._on_line = path, on_line
        self._read_to = path.stat().st_size if path.exists() else 0

    def follow(self) -> None:
        """Hand over what was written since. Of a bar that is drawn over itself the last state."""
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_to += len(whole) + len(newline)
        for line in whole.decode("utf-8", "replace").split("\n"):
            states = [state for state in line.split("\r") if state.strip()]
            if states:
                self._on_line(states[-1].rstrip())


def last_line(log: Path) -> str:
    """The last line of the log that says something, at most 300 characters."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        lines = file.read().decode("utf-8", "replace").splitlines()
    spoken = [line.strip() for line in lines if line.strip()]
    return spoken[-1][:300] if spoken else ""
