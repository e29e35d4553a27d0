"""What was seen of items before, in SQLite, so that a second reading touches no media."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mmcalib.census import cache_file
from mmcalib.census.executors.executor import ProbeResult, ProbeTask
from mmcalib.closing import Closing
from mmcalib.domain.seen import is_sound, may_pass
from mmcalib.locations.location import BEHIND

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

    Items go by digests: names may be secret, and URLs are where they carry a signature. The file
    is made anew where it is damaged, of another form, or written by other versions of mmcalib or of
    the libraries that read media. A line that nobody could have answered is as good as none. Raises
    `CacheBroken`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[_Row] = []
        self._committed = time.monotonic()
        self._folders: dict[str, bytes] = {}
        try:
            self._db = cache_file.connect(path, _made_by())
        except OSError as error:
            raise CacheBroken(f"{path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise CacheBroken(str(error)) from error

    def find(self, orders: Sequence[ProbeTask]) -> list[str | None]:
        """Per order the line that was answered for the same bytes, None where none was."""
        keys = [self._key(order) if order.version else None for order in orders]
        known = [key for key in keys if key is not None]
        with self._as_broken():
            rows = self._rows(known) if known else {}
        found: list[str | None] = []
        for order, key in zip(orders, keys, strict=True):
            version, line = rows.get(key, _NONE) if key else _NONE
            found.append(line if key and version == order.version and is_sound(line) else None)
        return found

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
        with self._as_broken():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", rows)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def close(self) -> None:
        try:
            self.commit()
        finally:
            self._db.close()

    def _rows(self, keys: Sequence[bytes]) -> dict[bytes, tuple[str, str]]:
        """Version and line by key."""
        found: dict[bytes, tuple[str, str]] = {}
        for start in range(0, len(keys), _ASKED_AT_ONCE):
            some = keys[start : start + _ASKED_AT_ONCE]
            marks = ",".join("?" * len(some))
            rows = self._db.execute(
                f"SELECT item, version, line FROM seen WHERE item IN ({marks})",  # noqa: S608
                some,
            )
            found |= {key: (version, line) for key, version, line in rows}
        return found

    def _key(self, order: ProbeTask) -> bytes:
        path = order.item.path
        folder = _folder(path)
        first = self._folders.get(folder)
        if first is None:
            first = blake2b(folder.encode(), digest_size=_FOLDER_BYTES).digest()
            self._folders[folder] = first
        told = f"{_how(order)}\0{path}".encode()
        return first + blake2b(told, digest_size=_ITEM_BYTES).digest()

    @contextlib.contextmanager
    def _as_broken(self) -> Iterator[None]:
        """What is damaged goes, so that the next scan begins anew."""
        try:
            yield
        except sqlite3.Error as error:
            if cache_file.is_damage(error):
                self._db.close()
                with contextlib.suppress(OSError):
                    cache_file.remove(self.path)
            raise CacheBroken(str(error)) from error


def _folder(path: str) -> str:
    """Of the member of an archive, the archive."""
    if BEHIND in path and not path.startswith("/"):
        return path.partition(BEHIND)[2]
    return path.rpartition("/")[0]


def _how(order: ProbeTask) -> str:
    if order.whole:
        return f"{order.item.declared or ''}+"
    return order.item.declared or ""


def _made_by() -> str:
    return f"{PROBE} " + " ".join(f"{name} {_installed(name)}" for name in _READERS)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"
