"""A cache that somebody else has written to: no scan ends of it, believes it or tells of it."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mmcalib.census.cache import Cache, CacheBroken
from mmcalib.census.executor import ProbeResult, ProbeTask
from mmcalib.census.prober import Prober
from mmcalib.domain.items import ByteSource, Item
from mmcalib.progress import Silent
from mmcalib.storage.location import version
from tests.census.decoders import behave
from tests.census.looking import Inline, seen_now

SEEN = '["image",5,1]'


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "media" / "a.png"
    path.parent.mkdir()
    path.write_bytes(b"x")
    os.utime(path, (1_700_000_000.5, 1_700_000_000.5))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "c.sqlite3"


def scanned(cache: Path, file: Path) -> tuple[list[str], list[str]]:
    """What a scan sees of the file, which it must, and what it notes."""
    notes = Notes()
    prober = Prober(Inline(behave), Cache(cache), progress=notes)
    try:
        return seen_now(prober, Item(str(file))), notes.said
    finally:
        prober.close()


def is_known(cache: Path, file: Path) -> bool:
    with Cache(cache) as opened:
        return opened.find([ProbeTask(Item(str(file)), version=version(Item(str(file))))]) == [SEEN]


def spoilt(cache: Path, file: Path, statement: str, *values: object) -> None:
    """A sound cache that knows the file, and then this."""
    assert scanned(cache, file) == ([SEEN], [])
    with sqlite3.connect(cache) as db:
        db.execute(statement, values)
    db.close()


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "[" * 20_000,
        '["image",5]',
        '["image","5","1"]',
        '["image",-5,1]',
        f'["image",1{"0" * 5000},1]',
        '["video",5,1.0,NaN,5,5]',
        '["__class__",5,1]',
        json.dumps(["skipped", "\x1b]0;title\x07"]),
        '["skipped","\\ud800"]',
        b"\xff\xfe",
        7,
        b"x" * (8 << 20),
    ],
    ids=lambda line: repr(line)[:30],
)
def test_a_line_that_nobody_answered_is_looked_at_again(line: object, cache, file) -> None:
    spoilt(cache, file, "UPDATE seen SET line = ?", line)
    seen, _ = scanned(cache, file)
    assert seen == [SEEN]
    scanned(cache, file)
    assert is_known(cache, file)


FOREIGN = [
    "ALTER TABLE seen ADD COLUMN more TEXT",
    "CREATE TABLE more (a)",
    "CREATE INDEX more ON seen (line)",
    "CREATE TRIGGER t AFTER INSERT ON seen BEGIN DELETE FROM seen; END",
    "CREATE TRIGGER t AFTER DELETE ON made BEGIN UPDATE made SET made_by = 'x'; END",
    "DROP TABLE seen",
    "ALTER TABLE made RENAME TO other",
]


@pytest.mark.parametrize("statement", FOREIGN)
def test_tables_that_are_not_ours_begin_anew(statement: str, cache, file) -> None:
    spoilt(cache, file, statement)
    assert scanned(cache, file) == ([SEEN], [])
    assert is_known(cache, file)


def replaced(cache: Path, *statements: str) -> None:
    with sqlite3.connect(cache) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"


@pytest.mark.parametrize(
    "statements",
    [
        # What earlier versions wrote, in which names stand in clear.
        (
            "CREATE TABLE folders (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE)",
            "CREATE TABLE seen (folder INTEGER NOT NULL, name TEXT NOT NULL, how TEXT NOT NULL,"
            " version TEXT NOT NULL, line TEXT NOT NULL, PRIMARY KEY (folder, name, how))"
            " WITHOUT ROWID",
            "CREATE TABLE made (made_by TEXT NOT NULL)",
            "INSERT INTO folders VALUES (1, 'https://name:secret@host')",
        ),
        (
            f"CREATE VIEW seen AS {ENDLESS} AS item, i AS version, i AS line FROM n",
            f"CREATE VIEW made AS {ENDLESS} AS made_by FROM n",
        ),
        ("CREATE TABLE seen (item, version, line)", "CREATE TABLE made (made_by)"),
        ("PRAGMA encoding = 'UTF-16'", "CREATE TABLE x (a)"),
        ("PRAGMA page_size = 65536", "CREATE TABLE x (a)"),
    ],
    ids=["older", "views", "types", "utf-16", "pages"],
)
def test_a_database_of_another_form_begins_anew(statements: tuple[str, ...], cache, file) -> None:
    replaced(cache, *statements)
    assert scanned(cache, file) == ([SEEN], [])
    assert is_known(cache, file)
    assert b"secret" not in cache.read_bytes()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_cache_that_is_damaged_behind_its_first_page_is_begun_anew(
    share: float, cache: Path, file: Path
) -> None:
    spoilt(cache, file, "SELECT 1")
    data = bytearray(cache.read_bytes())
    at = 4096 + int(share * (len(data) - 4096))
    data[4096:at] = b"\xa5" * (at - 4096)
    cache.write_bytes(data)
    assert scanned(cache, file)[0] == [SEEN]
    assert scanned(cache, file) == ([SEEN], [])
    assert is_known(cache, file)


def link_to(target: str) -> Callable[[Path], None]:
    def lay(path: Path) -> None:
        replaced(path.with_name("theirs"), "CREATE TABLE theirs (a)")
        path.with_name("empty").touch()
        path.symlink_to(target)

    return lay


def hard_link(path: Path) -> None:
    replaced(path.with_name("theirs"), "CREATE TABLE theirs (a)")
    os.link(path.with_name("theirs"), path)


def folder(path: Path) -> None:
    (path / "in").mkdir(parents=True)


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize(
    "lay",
    [os.mkfifo, *map(link_to, ("theirs", "empty", "none", "/dev/zero")), hard_link],
    ids=["fifo", "link", "to nothing in it", "dangling", "zero", "hard link"],
)
def test_what_lies_in_place_of_the_file_is_left_alone(
    lay: Callable[[Path], None], end: str, cache: Path, file: Path
) -> None:
    lay(Path(f"{cache}{end}"))
    others = {path: path.read_bytes() for path in cache.parent.iterdir() if path.suffix == ""}
    assert scanned(cache, file) == ([SEEN], [])
    assert is_known(cache, file)
    assert not cache.is_symlink()
    for path, content in others.items():
        assert path.read_bytes() == content
    assert not cache.with_name("none").exists()


def test_a_folder_in_place_of_the_file_is_a_note(cache: Path, file: Path) -> None:
    folder(cache)
    with pytest.raises(CacheBroken, match="directory"):
        Cache(cache)
    assert (cache / "in").is_dir()


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_nobody_else_can_read_it(cache: Path, file: Path) -> None:
    before = os.umask(0)
    try:
        with Cache(cache) as opened:
            opened.keep([(ProbeTask(Item(str(file))), ProbeResult(SEEN, "1:1"))])
            opened.commit()
            assert {path.name for path in cache.parent.iterdir()} == {
                *(f"{cache.name}{end}" for end in ("", "-wal", "-shm"))
            }
            assert modes(cache.parent) == {0o600}
            for path in cache.parent.iterdir():
                path.chmod(0o666)
            with Cache(cache):
                assert modes(cache.parent) == {0o600}
        assert modes(cache.parent) == {0o600}
    finally:
        os.umask(before)


def test_no_name_and_no_signature_is_kept(cache: Path) -> None:
    urls = [
        "https://name:secret@host/folder/a.png",
        "https://host/a.png?X-Amz-Signature=secret",
        "tar://secret.png::https://host/a.tar?sig=secret",
        "/media/secret/secret.png",
    ]
    with Cache(cache) as opened:
        orders = [ProbeTask(Item(url, held=ByteSource("tag", 1)), version="tag") for url in urls]
        opened.keep((order, ProbeResult(SEEN, "tag")) for order in orders)
        opened.commit()
        assert opened.find(orders) == [SEEN] * len(urls)
        assert all(b"secret" not in path.read_bytes() for path in cache.parent.iterdir())


@pytest.mark.parametrize(
    "reason", ["no permission to read it", "no answer in time", "cannot be read: the server says 5"]
)
def test_what_may_pass_is_not_remembered(reason: str, cache: Path) -> None:
    order = ProbeTask(Item("s3://b/a.png", held=ByteSource("tag", 1)), version="tag")
    with Cache(cache) as opened:
        opened.keep([(order, ProbeResult(json.dumps(["skipped", reason]), "tag"))])
        opened.commit()
        assert opened.find([order]) == [None]
