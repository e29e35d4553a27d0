"""The cache of a census, also a damaged one."""

import json
import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from mmcalib.census import cache as cache_module
from mmcalib.census.cache import Cache
from mmcalib.census.counter import Prober
from mmcalib.census.executor import ProbeResult, ProbeTask
from mmcalib.census.worker import probe_task
from mmcalib.domain.items import ByteSource, Item
from mmcalib.progress import Silent
from mmcalib.storage.location import is_settled, item_version
from tests.census.decoders import behave
from tests.census.looking import OLD_NS, Inline, seen_now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "media" / "a.png"
    path.parent.mkdir()
    path.write_bytes(b"x")
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return path


def order(path: Path | str, how: str = "", **held: Any) -> ProbeTask:
    declared: Any = how.rstrip("+") or None
    item = Item(str(path), declared, **held)
    return ProbeTask(item, how.endswith("+"), item_version(item))


def kept(cache: Cache, *orders: ProbeTask, commit: bool = True) -> None:
    cache.store(
        (order, ProbeResult(f'["image",{n},1]', order.version or ""))
        for n, order in enumerate(orders, 1)
    )
    if commit:
        cache.commit()


def test_a_changed_file_is_not_known(tmp_path: Path, file: Path) -> None:
    with Cache(tmp_path / "c") as cache:
        kept(cache, order(file))
        os.utime(file, ns=(OLD_NS, OLD_NS + 1))
        assert cache.find([order(file)]) == [None]
        file.write_bytes(b"xy")
        os.utime(file, ns=(OLD_NS, OLD_NS))
        assert cache.find([order(file)]) == [None]


def test_headers_and_whole_files_and_what_they_are_declared_are_kept_apart(tmp_path, file) -> None:
    orders = [order(file, how) for how in ("", "+", "image", "image+", "audio")]
    with Cache(tmp_path / "c") as cache:
        kept(cache, *orders)
        assert cache.find(orders * 2) == [f'["image",{n},1]' for n in range(1, 6)] * 2
        assert cache.find([order(file, "video")]) == [None]


def test_members_of_archives_go_by_the_archive(tmp_path: Path) -> None:
    def member(name: str, archive: str, of: str) -> ProbeTask:
        return order(f"tar://{name}::{archive}", byte_source=ByteSource(of, 1))

    with Cache(tmp_path / "c") as cache:
        kept(cache, member("a/b.png", "/x.tar", "1:1"), member("a/b.png", "/y.tar", "1:1"))
        assert cache.find([member("a/b.png", "/y.tar", "1:1")])[0] is not None
        assert cache.find([member("a/b.png", "/y.tar", "1:2")]) == [None]
        assert cache.find([member("b.png", "/y.tar", "1:1")]) == [None]


def test_what_could_still_change_unseen_is_not_kept(file: Path) -> None:
    assert probe_task(order(file), behave).version == order(file).version
    os.utime(file)
    assert not probe_task(order(file), behave).version


@pytest.mark.parametrize(
    ("version", "age_ns", "settled"),
    [
        (f"1:{OLD_NS}", 10_000_000, False),
        (f"1:{OLD_NS}", 30_000_000, True),
        ("1:1700000000000000000", 30_000_000, False),
        ("1:1700000000000000000", 2_100_000_000, True),
        ('"an-etag"', 0, True),
    ],
)
def test_times_of_files_have_ticks(version: str, age_ns: int, settled: bool) -> None:
    mtime = version.rpartition(":")[2]
    assert is_settled(version, (int(mtime) if mtime.isdigit() else 0) + age_ns) == settled


def test_answers_without_a_version_are_not_kept(tmp_path: Path) -> None:
    gone = order(tmp_path / "gone")
    with Cache(tmp_path / "c") as cache:
        kept(cache, gone)
        assert cache.find([gone]) == [None]


def test_other_versions_of_the_readers_begin_anew(tmp_path: Path, file: Path, monkeypatch) -> None:
    with Cache(tmp_path / "c") as cache:
        kept(cache, order(file))
    monkeypatch.setattr(cache_module, "PROBE", cache_module.PROBE + 1)
    with Cache(tmp_path / "c") as cache:
        assert cache.find([order(file)]) == [None]


def test_two_may_use_it_at_once(tmp_path: Path, file: Path) -> None:
    with Cache(tmp_path / "c") as one, Cache(tmp_path / "c") as other:
        kept(one, order(file))
        kept(other, order(file, "+"))
        assert None not in one.find([order(file), order(file, "+")])


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_a_cache_that_breaks_meanwhile_costs_one_line(tmp_path: Path, file: Path) -> None:
    notes = Notes()
    cache = Cache(tmp_path / "c")
    prober = Prober(Inline(behave), cache, progress=notes)
    cache._db.execute("DROP TABLE seen")
    assert seen_now(prober, Item(str(file))) == ['["image",5,1]']
    assert seen_now(prober, Item(str(file))) == ['["image",5,1]']
    prober.close()
    assert notes.said == ["the cache of probed files is off: no such table: seen"]


def test_a_second_survey_looks_at_nothing(tmp_path: Path, file: Path) -> None:
    looked: list[str] = []

    def look(item: Item):
        looked.append(item.path)
        return behave(item)

    for _ in range(2):
        prober = Prober(Inline(look), Cache(tmp_path / "c"))
        assert seen_now(prober, Item(str(file))) == ['["image",5,1]']
        prober.close()
    assert looked == [str(file)]


def test_a_crash_loses_a_moment_at_most(tmp_path: Path, file: Path) -> None:
    cache = Cache(tmp_path / "c")
    kept(cache, order(file), commit=False)
    time.sleep(0.3)
    kept(cache, order(file, "+"), commit=False)  # writes, because a moment has passed
    assert None not in Cache(tmp_path / "c").find([order(file), order(file, "+")])


SEEN = '["image",5,1]'


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "c.sqlite3"


def scanned(database: Path, file: Path) -> tuple[list[str], list[str]]:
    """Scan the file, which must be seen, and return what is noted."""
    notes = Notes()
    prober = Prober(Inline(behave), Cache(database), progress=notes)
    try:
        return seen_now(prober, Item(str(file))), notes.said
    finally:
        prober.close()


def is_known(database: Path, file: Path) -> bool:
    with Cache(database) as opened:
        return opened.find([order(file)]) == [SEEN]


def test_what_earlier_versions_wrote_begins_anew(database: Path, file: Path) -> None:
    """In which names stand in clear."""
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE folders (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE)")
        db.execute("CREATE TABLE seen (folder INTEGER NOT NULL, line TEXT NOT NULL)")
        db.execute("INSERT INTO folders VALUES (1, 'https://name:secret@host')")
    db.close()
    assert scanned(database, file) == ([SEEN], [])
    assert is_known(database, file)
    assert b"secret" not in database.read_bytes()


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
def test_a_file_that_is_no_database_begins_anew(content: bytes, database: Path, file: Path) -> None:
    database.write_bytes(content)
    assert scanned(database, file) == ([SEEN], [])
    assert is_known(database, file)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_cache_that_is_damaged_behind_its_first_page_is_begun_anew(share, database, file) -> None:
    assert scanned(database, file) == ([SEEN], [])
    data = bytearray(database.read_bytes())
    at = 4096 + int(share * (len(data) - 4096))
    data[4096:at] = b"\xa5" * (at - 4096)
    database.write_bytes(data)
    assert scanned(database, file)[0] == [SEEN]
    assert scanned(database, file) == ([SEEN], [])
    assert is_known(database, file)


def test_nobody_else_can_read_it(database: Path) -> None:
    database.parent.chmod(0o777)
    with Cache(database):
        assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700


def test_no_name_and_no_signature_is_kept(database: Path) -> None:
    urls = [
        "https://name:secret@host/folder/a.png",
        "https://host/a.png?X-Amz-Signature=secret",
        "tar://secret.png::https://host/a.tar?sig=secret",
        "/media/secret/secret.png",
    ]
    with Cache(database) as opened:
        orders = [order(url, byte_source=ByteSource("tag", 1)) for url in urls]
        kept(opened, *orders)
        assert opened.find(orders) == [f'["image",{n},1]' for n in (1, 2, 3, 4)]
        assert all(b"secret" not in path.read_bytes() for path in database.parent.iterdir())


@pytest.mark.parametrize(
    "reason", ["no permission to read it", "no answer in time", "cannot be read: the server says 5"]
)
def test_what_may_pass_is_not_remembered(reason: str, database: Path) -> None:
    asked = order("s3://b/a.png", byte_source=ByteSource("tag", 1))
    with Cache(database) as opened:
        opened.store([(asked, ProbeResult(json.dumps(["skipped", reason]), "tag"))])
        opened.commit()
        assert opened.find([asked]) == [None]
