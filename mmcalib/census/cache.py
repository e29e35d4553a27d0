"""Cache of probe results: an SQLite file in a folder that only its owner can use."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

from mmcalib.census.executor import ProbeResult, ProbeTask
from mmcalib.domain.items import is_transient
from mmcalib.processes import Closing
from mmcalib.storage.location import MEMBER_MARK
from mmcalib.version import installed_version

_TABLE = (
    "CREATE TABLE seen (item BLOB PRIMARY KEY, version TEXT NOT NULL, line TEXT NOT NULL)"
    " WITHOUT ROWID"
)

# Wait this long for another scan that is writing.
_LOCK_TIMEOUT_S = 20.0

# Errors of the disk, the memory or another process, which leave the file intact.
_OUTSIDE_ERRORS = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM),
    *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM),
}


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file; begin anew if it is damaged or others made it. Raises OSError, sqlite3.Error.

    Its folder is for its owner alone, so that nobody else can have written the file.
    """
    versions = (f"{name} {installed_version(name) or '?'}" for name in _READERS)
    folder, made_by = path.parent, crc32(" ".join([_TABLE, str(PROBE), *versions]).encode()) >> 1
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owners = {os.geteuid(), os.stat(folder.parent).st_uid}
    if {os.lstat(folder).st_uid, os.stat(folder).st_uid} - owners:
        raise PermissionError(errno.EPERM, "belongs to another user")
    with contextlib.suppress(PermissionError):  # some network drives do not support modes
        folder.chmod(0o700)
    # Two scans that start at once must not delete each other's file.
    with (folder / "lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _open(path, made_by)
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise
        _remove(path)
        return _open(path, made_by, new=True)


def _open(path: Path, made_by: int, *, new: bool = False) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        # A power cut can lose only the last commit.
        db.execute("PRAGMA synchronous = NORMAL")
        if new:
            db.execute(_TABLE)
            db.execute(f"PRAGMA user_version = {made_by}")
        if db.execute("PRAGMA user_version").fetchone() != (made_by,):
            raise sqlite3.DatabaseError("made by another version")
    except BaseException:
        db.close()
        raise
    return db


def _is_damage(error: sqlite3.Error) -> bool:
    """True if the file itself is damaged, so that the next scan would fail too."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return (code & 0xFF) not in _OUTSIDE_ERRORS


def _remove(path: Path) -> None:
    """Delete the database and SQLite's extra files. Raises OSError."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


# Increase it whenever a probe's result for the same bytes changes, its texts included.
PROBE = 4
_READERS = ("av", "pillow", "soundfile")

# A crash loses at most this much; a commit takes a millisecond.
_COMMIT_S = 0.25

# An item's key begins with a digest of its folder, so that a folder's rows are adjacent.
_FOLDER_BYTES, _ITEM_BYTES = 8, 24

_Row = tuple[bytes, str, str]


class CacheBroken(Exception):  # noqa: N818 - a value in flight, turned into a note
    """The file cannot be used; the message gives the reason."""


class Cache(Closing):
    """Probe results by path and version, in one file that several processes can use.

    Keys are digests, because names may be secret and URLs carry signatures. A file that is damaged
    or comes from other versions is replaced. Raises `CacheBroken`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[_Row] = []
        self._committed = time.monotonic()
        try:
            self._db = _connect(path)
        except OSError as error:
            raise CacheBroken(f"{path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise CacheBroken(str(error)) from error

    def find(self, orders: Sequence[ProbeTask]) -> list[str | None]:
        """Return the cached line of each order; None if the cache has none for the same bytes."""
        keys = [self._key(order) if order.version else None for order in orders]
        known = [key for key in keys if key is not None]
        with self._discarding_damage():
            marks = ",".join("?" * len(known))
            query = f"SELECT item, version, line FROM seen WHERE item IN ({marks})"  # noqa: S608
            lines = {(key, version): line for key, version, line in self._db.execute(query, known)}
        return [lines.get((key, order.version)) for key, order in zip(keys, orders, strict=True)]

    def store(self, answered: Iterable[tuple[ProbeTask, ProbeResult]]) -> None:
        """Store results; they reach the disk within a moment, at the next call or on `close`."""
        for order, answer in answered:
            if answer.version and not is_transient(answer.line):
                self._pending.append((self._key(order), answer.version, answer.line))
        if time.monotonic() - self._committed > _COMMIT_S:
            self.commit()

    def commit(self) -> None:
        rows, self._pending = self._pending, []
        self._committed = time.monotonic()
        if not rows:
            return
        with self._discarding_damage(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        try:
            self.commit()
        finally:
            self._db.close()

    def _key(self, order: ProbeTask) -> bytes:
        path, how = order.item.path, (order.item.declared or "") + "+" * order.whole
        # For a member of an archive, the archive is the folder.
        within = MEMBER_MARK in path and not path.startswith("/")
        folder = path.partition(MEMBER_MARK)[2] if within else path.rpartition("/")[0]
        first = blake2b(folder.encode(), digest_size=_FOLDER_BYTES).digest()
        return first + blake2b(f"{how}\0{path}".encode(), digest_size=_ITEM_BYTES).digest()

    @contextlib.contextmanager
    def _discarding_damage(self) -> Iterator[None]:
        """Delete the file if it is damaged, so that the next scan starts a new one."""
        try:
            yield
        except sqlite3.Error as error:
            if _is_damage(error):
                self._db.close()
                with contextlib.suppress(OSError):
                    _remove(self.path)
            raise CacheBroken(str(error)) from error
