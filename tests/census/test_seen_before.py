from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from mmcalib.census import cache as cache_module
from mmcalib.census.cache import Cache, CacheBroken
from mmcalib.census.executor import ProbeResult, ProbeTask
from mmcalib.census.prober import Prober
from mmcalib.census.worker import answer
from mmcalib.domain.items import ByteSource, Item
from mmcalib.progress import Silent
from mmcalib.storage.location import is_settled, version
from tests.census.decoders import behave
from tests.census.looking import Inline, seen_now

OLD_NS = 1_700_000_000_123_456_789


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
    return ProbeTask(item, how.endswith("+"), version(item))


def kept(cache: Cache, *orders: ProbeTask) -> None:
    cache.keep(
        (order, ProbeResult(f'["image",{n},1]', order.version or ""))
        for n, order in enumerate(orders, 1)
    )


def test_what_was_seen_is_known_to_the_next_one(tmp_path: Path, file: Path) -> None:
    with Cache(tmp_path / "c") as cache:
        assert cache.find([order(file)]) == [None]
        kept(cache, order(file))
    with Cache(tmp_path / "c") as cache:
        assert cache.find([order(file)] * 2) == ['["image",1,1]'] * 2


def test_a_changed_file_is_not_known(tmp_path: Path, file: Path) -> None:
    with Cache(tmp_path / "c") as cache:
        kept(cache, order(file))
        cache.commit()
        os.utime(file, ns=(OLD_NS, OLD_NS + 1))
        assert cache.find([order(file)]) == [None]
        file.write_bytes(b"xy")
        os.utime(file, ns=(OLD_NS, OLD_NS))
        assert cache.find([order(file)]) == [None]


def test_headers_and_whole_files_and_what_they_are_declared_are_kept_apart(tmp_path, file) -> None:
    orders = [order(file, how) for how in ("", "+", "image", "image+", "audio")]
    with Cache(tmp_path / "c") as cache:
        kept(cache, *orders)
        cache.commit()
        assert cache.find(orders) == [f'["image",{n},1]' for n in range(1, 6)]
        assert cache.find([order(file, "video")]) == [None]


def test_members_of_archives_go_by_the_archive(tmp_path: Path) -> None:
    def member(name: str, archive: str, of: str) -> ProbeTask:
        return order(f"tar://{name}::{archive}", held=ByteSource(of, 1))

    with Cache(tmp_path / "c") as cache:
        kept(cache, member("a/b.png", "/x.tar", "1:1"), member("a/b.png", "/y.tar", "1:1"))
        cache.commit()
        assert cache.find([member("a/b.png", "/y.tar", "1:1")])[0] is not None
        assert cache.find([member("a/b.png", "/y.tar", "1:2")]) == [None]
        assert cache.find([member("b.png", "/y.tar", "1:1")]) == [None]


def test_what_could_still_change_unseen_is_not_kept(file: Path) -> None:
    assert answer(order(file), behave).version == order(file).version
    os.utime(file)
    assert not answer(order(file), behave).version


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
        cache.commit()
        assert cache.find([gone]) == [None]


def test_other_versions_of_the_readers_begin_anew(tmp_path: Path, file: Path, monkeypatch) -> None:
    with Cache(tmp_path / "c") as cache:
        kept(cache, order(file))
    monkeypatch.setattr(cache_module, "PROBE", cache_module.PROBE + 1)
    with Cache(tmp_path / "c") as cache:
        assert cache.find([order(file)]) == [None]


def test_a_damaged_file_is_begun_anew(tmp_path: Path, file: Path) -> None:
    with Cache(tmp_path / "c") as cache:
        kept(cache, order(file))
    (tmp_path / "c").write_bytes(b"no database at all" * 1000)
    with Cache(tmp_path / "c") as cache:
        assert cache.find([order(file)]) == [None]
        kept(cache, order(file))
        cache.commit()
        assert cache.find([order(file)]) != [None]


def test_where_nothing_can_be_written_there_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheBroken):
        Cache(tmp_path / "file" / "c")


def test_two_may_use_it_at_once(tmp_path: Path, file: Path) -> None:
    with Cache(tmp_path / "c") as one, Cache(tmp_path / "c") as other:
        kept(one, order(file))
        one.commit()
        kept(other, order(file, "+"))
        other.commit()
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
    assert notes.said == ["not remembered for another time: no such table: seen"]


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
    kept(cache, order(file))
    time.sleep(0.3)
    kept(cache, order(file, "+"))  # writes, because a moment has passed
    assert None not in Cache(tmp_path / "c").find([order(file), order(file, "+")])


def test_more_items_than_sqlite_takes_at_once(tmp_path: Path) -> None:
    orders = [
        ProbeTask(Item(f"s3://b/{number}", None, ByteSource("v", 1)), False, "v")
        for number in range(40_000)
    ]
    with Cache(tmp_path / "c") as cache:
        kept(cache, *orders[-2:])
        cache.commit()
        found = cache.find(orders)
    assert found[:-2] == [None] * 39_998
    assert found[-2:] == ['["image",1,1]', '["image",2,1]']
