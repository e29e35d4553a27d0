"""Cache of probe results in a private SQLite file, replaced if its schema is unexpected."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mmcalib.census.executor import ProbeResult, ProbeTask
from mmcalib.domain.items import is_transient, is_valid_line
from mmcalib.processes import Closing
from mmcalib.storage.location import MEMBER_MARK

# SQLite's extra files must be as private as the database.
_SUFFIXES = ("", "-wal", "-shm")
_PRIVATE = 0o600

# Compared as SQLite stores it, because a view or trigger of these names could run any SQL.
TABLES = (
    "CREATE TABLE made (made_by TEXT NOT NULL)",
    "CREATE TABLE seen (item BLOB PRIMARY KEY, version TEXT NOT NULL, line TEXT NOT NULL)"
    " WITHOUT ROWID",
)

# Wait this long for another scan that is writing or starting.
LOCK_TIMEOUT_S = 20.0
_POLL_S = 0.02

# Longer values are not from mmcalib, and would fill the memory.
MAX_VALUE_BYTES = 1 << 16

# Checking the schema takes few steps, unless the file's pages form a circle.
_MAX_STEPS = 1_000_000

# Errors of the disk, the memory or another process, which leave the file intact.
_OUTSIDE_ERRORS = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM),
    *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM),
}


def connect(path: Path, made_by: str) -> sqlite3.Connection:
    """Open or create the file; clear it if `made_by` differs. Raises OSError and sqlite3.Error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path.parent):
        _make_private(path)
        try:
            return _open_database(path, made_by)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            remove_database(path)
            _make_private(path)
            return _open_database(path, made_by)


def is_damage(error: sqlite3.Error) -> bool:
    """True if the file itself is damaged, so that the next scan would fail too."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return (code & 0xFF) not in _OUTSIDE_ERRORS


def remove_database(path: Path) -> None:
    """Delete the database and SQLite's extra files. Raises OSError."""
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def _make_private(path: Path) -> None:
    """Create the file for its owner alone; delete it first if it is not regular or has links."""
    owners = {os.geteuid(), os.stat(path.parent).st_uid}
    for suffix in _SUFFIXES:
        name = f"{path}{suffix}"
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            remove_database(path)
            break
        if status.st_uid not in owners:
            raise PermissionError(errno.EPERM, "belongs to another user", name)
        if stat.S_IMODE(status.st_mode) != _PRIVATE:
            with contextlib.suppress(PermissionError):  # some network drives do not support modes
                os.chmod(name, _PRIVATE)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))


def _open_database(path: Path, made_by: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    try:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        # A value that is not UTF-8 is not from mmcalib, and must not end a scan.
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        _check_schema(db)
        if db.execute("SELECT made_by FROM made").fetchone() != (made_by,):
            with db:
                db.execute("BEGIN IMMEDIATE")
                for table in ("seen", "made"):
                    db.execute(f"DELETE FROM {table}")  # noqa: S608 - both names are constants
                db.execute("INSERT INTO made VALUES (?)", [made_by])
    except BaseException:
        db.close()
        raise
    return db


def _check_schema(db: sqlite3.Connection) -> None:
    """Create the tables if there are none. Raises sqlite3.DatabaseError for other tables."""
    db.set_progress_handler(lambda: True, _MAX_STEPS)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA journal_mode = WAL")
    # A power cut can lose only the last commit.
    db.execute("PRAGMA synchronous = NORMAL")
    if not _schema(db):
        for table in TABLES:
            db.execute(table)
    if _schema(db) != [*TABLES]:
        raise sqlite3.DatabaseError("other tables than expected")
    db.set_progress_handler(None, 0)


def _schema(db: sqlite3.Connection) -> list[str]:
    tables = "SELECT sql FROM sqlite_master ORDER BY name LIMIT ?"
    return [sql for (sql,) in db.execute(tables, [len(TABLES) + 1])]


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock the folder, so that two scans that start at once do not delete each other's file."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(handle)


# Increase it whenever a probe's result for the same bytes changes, its texts included.
PROBE = 3
_READERS = ("av", "pillow", "soundfile")

# A crash loses at most this much; a commit takes a millisecond.
_COMMIT_S = 0.25

# An item's key begins with a digest of its folder, so that a folder's rows are adjacent.
_FOLDER_BYTES, _ITEM_BYTES = 8, 24

# Bounds what a server sends as an object's version.
_MAX_VERSION_CHARS = 1000

# SQLite's default limit is 32,766 values per query.
_MAX_QUERY_KEYS = 1 << 14

_NO_ROW = ("", "")
_Row = tuple[bytes, str, str]


class CacheBroken(Exception):  # noqa: N818 - a value in flight, turned into a note
    """The file cannot be used; the message gives the reason."""


class Cache(Closing):
    """Probe results by path and version, in one file that several processes can use.

    Keys are digests, because names may be secret and URLs carry signatures. A file that is damaged,
    has another schema, or comes from other versions is replaced. Impossible lines are ignored.
    Raises `CacheBroken`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[_Row] = []
        self._committed = time.monotonic()
        self._folders: dict[str, bytes] = {}
        try:
            self._db = connect(path, _made_by())
        except OSError as error:
            raise CacheBroken(f"{path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise CacheBroken(str(error)) from error

    def find(self, orders: Sequence[ProbeTask]) -> list[str | None]:
        """Return the cached line of each order; None if the cache has none for the same bytes."""
        keys = [self._key(order) if order.version else None for order in orders]
        known = [key for key in keys if key is not None]
        rows: dict[bytes, tuple[str, str]] = {}
        with self._discarding_damage():
            for start in range(0, len(known), _MAX_QUERY_KEYS):
                some = known[start : start + _MAX_QUERY_KEYS]
                marks = ",".join("?" * len(some))
                query = f"SELECT item, version, line FROM seen WHERE item IN ({marks})"  # noqa: S608
                answer = self._db.execute(query, some)
                rows |= {key: (version, line) for key, version, line in answer}
        lines: list[str | None] = []
        for order, key in zip(orders, keys, strict=True):
            version, line = rows.get(key, _NO_ROW) if key else _NO_ROW
            lines.append(line if key and version == order.version and is_valid_line(line) else None)
        return lines

    def store(self, answered: Iterable[tuple[ProbeTask, ProbeResult]]) -> None:
        """Store results; they reach the disk within a moment, at the next call or on `close`."""
        for order, answer in answered:
            if 0 < len(answer.version) <= _MAX_VERSION_CHARS and not is_transient(answer.line):
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
        first = self._folders.get(folder)
        if first is None:
            first = blake2b(folder.encode(), digest_size=_FOLDER_BYTES).digest()
            self._folders[folder] = first
        return first + blake2b(f"{how}\0{path}".encode(), digest_size=_ITEM_BYTES).digest()

    @contextlib.contextmanager
    def _discarding_damage(self) -> Iterator[None]:
        """Delete the file if it is damaged, so that the next scan starts a new one."""
        try:
            yield
        except sqlite3.Error as error:
            if is_damage(error):
                self._db.close()
                with contextlib.suppress(OSError):
                    remove_database(self.path)
            raise CacheBroken(str(error)) from error


def _made_by() -> str:
    versions = []
    for name in _READERS:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} ?")
    return f"{PROBE} " + " ".join(versions)
