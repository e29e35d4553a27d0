"""What was probed before, in an SQLite file for this user alone, begun anew where it is not of the
expected form.
"""

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
from mmcalib.domain.items import is_sound, may_pass
from mmcalib.processes import Closing
from mmcalib.storage.location import BEHIND

# What SQLite lays beside the file is as private as the file.
_ENDS = ("", "-wal", "-shm")
_PRIVATE = 0o600

# As SQLite keeps it: a view or a trigger of these names would run whatever it says.
FORM = (
    "CREATE TABLE made (made_by TEXT NOT NULL)",
    "CREATE TABLE seen (item BLOB PRIMARY KEY, version TEXT NOT NULL, line TEXT NOT NULL)"
    " WITHOUT ROWID",
)

# Another scan may be writing, or beginning.
PATIENCE_S = 20.0
_POLL_S = 0.02

# Longer values are none of ours, and would be held in memory.
MOST_BYTES = 1 << 16

# Whether the form is the expected one is seen at once, unless its pages lead round and round.
_STEPS = 1_000_000

# The disk, the memory or another process is to blame, not what stands in the file.
_NOT_ITS_CONTENT = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM),
    *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM),
}


def connect(path: Path, made_by: str) -> sqlite3.Connection:
    """Open or make the file, empty if not by `made_by`. Raises OSError and sqlite3.Error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _in_turn(path.parent):
        _make_private(path)
        try:
            return _open_database(path, made_by)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            remove(path)
            _make_private(path)
            return _open_database(path, made_by)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is to blame, so that another scan would fail as well."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return (code & 0xFF) not in _NOT_ITS_CONTENT


def remove(path: Path) -> None:
    """Raises OSError."""
    for end in _ENDS:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{end}")


def _make_private(path: Path) -> None:
    """Remove what is no file, or has another name elsewhere; let nobody else read the rest."""
    owners = {os.geteuid(), os.stat(path.parent).st_uid}
    for end in _ENDS:
        name = f"{path}{end}"
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            remove(path)
            break
        if status.st_uid not in owners:
            raise PermissionError(errno.EPERM, "it belongs to another user", name)
        if stat.S_IMODE(status.st_mode) != _PRIVATE:
            with contextlib.suppress(PermissionError):  # some network drives have no modes
                os.chmod(name, _PRIVATE)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))


def _open_database(path: Path, made_by: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)
    try:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        # What is not UTF-8 is no line of ours, and need not end a scan.
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        _require_form(db)
        if db.execute("SELECT made_by FROM made").fetchone() != (made_by,):
            with db:
                db.execute("BEGIN IMMEDIATE")
                for table in ("seen", "made"):
                    db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own two names
                db.execute("INSERT INTO made VALUES (?)", [made_by])
    except BaseException:
        db.close()
        raise
    return db


def _require_form(db: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where the file holds anything else."""
    db.set_progress_handler(lambda: True, _STEPS)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA journal_mode = WAL")
    # A power cut may lose what was committed last, and never more.
    db.execute("PRAGMA synchronous = NORMAL")
    if not _forms(db):
        for table in FORM:
            db.execute(table)
    if _forms(db) != [*FORM]:
        raise sqlite3.DatabaseError("other tables than expected")
    db.set_progress_handler(None, 0)


def _forms(db: sqlite3.Connection) -> list[str]:
    tables = "SELECT sql FROM sqlite_master ORDER BY name LIMIT ?"
    return [sql for (sql,) in db.execute(tables, [len(FORM) + 1])]


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    """Two that begin at once must not remove what the other has just made."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + PATIENCE_S
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


# Raised with every change to what a probe says of the same bytes.
PROBE = 2
_READERS = ("av", "pillow", "soundfile")

# What a crash may lose; a commit takes a millisecond.
_COMMIT_S = 0.25

# Of an item's key: its folder, so that those of one folder stand together, and the item.
_FOLDER_BYTES, _ITEM_BYTES = 8, 24

# A server may say anything of its objects.
_LONGEST_VERSION = 1000

# SQLite takes 32,766 values and no more, unless it was built otherwise.
_ASKED_AT_ONCE = 1 << 14

_NONE = ("", "")
_Row = tuple[bytes, str, str]


class CacheBroken(Exception):  # noqa: N818 - a value in flight, turned into a note
    """The file cannot be used; the message says why."""


class Cache(Closing):
    """Answers by path and version, in one file that several processes may use.

    Items go by digests: names may be secret, URLs carry signatures. The file is made anew if
    damaged, of another form, or by other versions. Impossible lines are ignored. Raises
    `CacheBroken`.
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
        """Per order the line that was answered for the same bytes, None where none was."""
        keys = [self._key(order) if order.version else None for order in orders]
        known = [key for key in keys if key is not None]
        rows: dict[bytes, tuple[str, str]] = {}
        with self._as_broken():
            for start in range(0, len(known), _ASKED_AT_ONCE):
                some = known[start : start + _ASKED_AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT item, version, line FROM seen WHERE item IN ({marks})"  # noqa: S608
                found = self._db.execute(query, some)
                rows |= {key: (version, line) for key, version, line in found}
        lines: list[str | None] = []
        for order, key in zip(orders, keys, strict=True):
            version, line = rows.get(key, _NONE) if key else _NONE
            lines.append(line if key and version == order.version and is_sound(line) else None)
        return lines

    def keep(self, answered: Iterable[tuple[ProbeTask, ProbeResult]]) -> None:
        """Remember; on disk with the first call that comes a moment later, or when closed."""
        for order, answer in answered:
            if 0 < len(answer.version) <= _LONGEST_VERSION and not may_pass(answer.line):
                self._pending.append((self._key(order), answer.version, answer.line))
        if time.monotonic() - self._committed > _COMMIT_S:
            self.commit()

    def commit(self) -> None:
        """Write what was remembered."""
        rows, self._pending = self._pending, []
        self._committed = time.monotonic()
        if not rows:
            return
        with self._as_broken(), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        try:
            self.commit()
        finally:
            self._db.close()

    def _key(self, order: ProbeTask) -> bytes:
        path, how = order.item.path, (order.item.declared or "") + "+" * order.whole
        # Of the member of an archive, the archive.
        within = BEHIND in path and not path.startswith("/")
        folder = path.partition(BEHIND)[2] if within else path.rpartition("/")[0]
        first = self._folders.get(folder)
        if first is None:
            first = blake2b(folder.encode(), digest_size=_FOLDER_BYTES).digest()
            self._folders[folder] = first
        return first + blake2b(f"{how}\0{path}".encode(), digest_size=_ITEM_BYTES).digest()

    @contextlib.contextmanager
    def _as_broken(self) -> Iterator[None]:
        """What is damaged goes, so that the next scan begins anew."""
        try:
            yield
        except sqlite3.Error as error:
            if is_damage(error):
                self._db.close()
                with contextlib.suppress(OSError):
                    remove(self.path)
            raise CacheBroken(str(error)) from error


def _made_by() -> str:
    versions = []
    for name in _READERS:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} ?")
    return f"{PROBE} " + " ".join(versions)
