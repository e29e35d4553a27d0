"""What was seen of items before, in SQLite, so that a second reading touches no media."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mmcalib.census.executors.executor import Answer, Order
from mmcalib.closing import Closing
from mmcalib.corpus.locations.location import BEHIND

# Raised with every change to what a probe says of the same bytes.
PROBE = 1
_READERS = ("av", "pillow", "soundfile")

# What a crash may lose; a commit takes a millisecond.
_COMMIT_S = 0.25

# Another scan may be writing.
_PATIENCE_S = 20.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS folders (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS seen (
    folder INTEGER NOT NULL, name TEXT NOT NULL, how TEXT NOT NULL,
    version TEXT NOT NULL, line TEXT NOT NULL,
    PRIMARY KEY (folder, name, how)
) WITHOUT ROWID;
"""

_NONE = ("", "")
_Row = tuple[int, str, str, str, str]


class CacheBroken(Exception):  # noqa: N818 - a value in flight, turned into a note
    """The file cannot be used; the message says why."""


class Cache(Closing):
    """Answers by path and version, in one file that several processes may use.

    The file is made anew where it was written by other versions of mmcalib or of the libraries that
    read media. Raises `CacheBroken`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[_Row] = []
        self._committed = time.monotonic()
        self._folders: dict[str, int] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheBroken(f"{path}: {error.strerror}") from error
        with _as_broken():
            self._db = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            # A power cut may lose what was committed last, and never more.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
            self._forget_others()

    def find(self, orders: Sequence[Order]) -> list[str | None]:
        """Per order the line that was answered for the same bytes, None where none was."""
        keys = [_key(order.item.path) if order.version else None for order in orders]
        by_folder: dict[str, list[str]] = {}
        for key in keys:
            if key is not None:
                by_folder.setdefault(key[0], []).append(key[1])
        with _as_broken():
            rows = {folder: self._rows(folder, names) for folder, names in by_folder.items()}
        found: list[str | None] = []
        for order, key in zip(orders, keys, strict=True):
            version, line = rows[key[0]].get((key[1], _how(order)), _NONE) if key else _NONE
            found.append(line if key and version == order.version else None)
        return found

    def keep(self, answered: Iterable[tuple[Order, Answer]]) -> None:
        """Remember; on disk with the first call that comes a moment later, or when closed."""
        for order, answer in answered:
            if answer.version:
                folder, name = _key(order.item.path)
                row = (self._folder(folder), name, _how(order), answer.version, answer.line)
                self._pending.append(row)
        if time.monotonic() - self._committed > _COMMIT_S:
            self.commit()

    def commit(self) -> None:
        """Write what was remembered."""
        rows, self._pending = self._pending, []
        self._committed = time.monotonic()
        if not rows:
            return
        with _as_broken():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?)", rows)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def close(self) -> None:
        try:
            self.commit()
        finally:
            self._db.close()

    def _rows(self, folder: str, names: list[str]) -> dict[tuple[str, str], tuple[str, str]]:
        """Version and line by name and how it was looked at."""
        marks = ",".join("?" * len(names))
        rows = self._db.execute(
            f"SELECT name, how, version, line FROM seen WHERE folder = ? AND name IN ({marks})",  # noqa: S608
            [self._folder(folder), *names],
        )
        return {(name, how): (version, line) for name, how, version, line in rows}

    def _folder(self, path: str) -> int:
        known = self._folders.get(path)
        if known is None:
            with _as_broken():
                self._db.execute("INSERT OR IGNORE INTO folders (path) VALUES (?)", [path])
                row = self._db.execute("SELECT id FROM folders WHERE path = ?", [path]).fetchone()
            known = self._folders[path] = int(row[0])
        return known

    def _forget_others(self) -> None:
        made_by = f"{PROBE} " + " ".join(f"{name} {_installed(name)}" for name in _READERS)
        self._db.execute("CREATE TABLE IF NOT EXISTS made (made_by TEXT NOT NULL)")
        row = self._db.execute("SELECT made_by FROM made").fetchone()
        if row is None or row[0] != made_by:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for table in ("seen", "folders", "made"):
                    self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own three names
                self._db.execute("INSERT INTO made VALUES (?)", [made_by])


def opened(path: Path) -> Cache:
    """The cache at `path`, which is begun anew where it is damaged. Raises `CacheBroken`."""
    try:
        return Cache(path)
    except CacheBroken as error:
        if not isinstance(error.__cause__, sqlite3.DatabaseError) or isinstance(
            error.__cause__, sqlite3.OperationalError
        ):
            raise
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{path}{end}")
        return Cache(path)


@contextlib.contextmanager
def _as_broken() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CacheBroken(str(error)) from error


def _key(path: str) -> tuple[str, str]:
    """A folder and a name in it; of the member of an archive, the archive and the member."""
    if BEHIND in path and not path.startswith("/"):
        name, _, folder = path.partition(BEHIND)
        return folder, name
    folder, _, name = path.rpartition("/")
    return folder, name


def _how(order: Order) -> str:
    if order.whole:
        return f"{order.item.declared or ''}+"
    return order.item.declared or ""


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"
