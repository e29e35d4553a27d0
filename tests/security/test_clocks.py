"""Clocks that jump, and files of any time: what is remembered is never of other bytes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from mmcalib.census.cache import Cache
from mmcalib.census.executors.answering import answer
from mmcalib.census.executors.executor import ProbeTask
from mmcalib.census.versions import is_settled, version
from mmcalib.domain.items import Item
from tests.census.decoders import behave
from tests.corpus.tars import png, tar
from tests.security.commands import ended

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
NOW = time.time_ns()
TIMES = {
    "1900": -2_208_988_800 * SECOND,
    "a moment before 1970": -1,
    "1970": 0,
    "whole seconds": NOW // SECOND * SECOND - DAY,
    "now": NOW,
    "in a moment": NOW + 5 * SECOND,
    "tomorrow": NOW + DAY,
    "2038": (1 << 31) * SECOND + 1,
    "2200": 7_258_118_400 * SECOND,
    "the last that 64 bits hold": (1 << 63) - 1,
}


def laid(path: Path, data: bytes, at_ns: int) -> Path:
    path.write_bytes(data)
    try:
        os.utime(path, ns=(at_ns, at_ns))
    except OSError:
        pytest.skip("a time that this file system does not keep")
    return path


@pytest.mark.parametrize("when", TIMES)
def test_a_scan_reads_files_of_any_time(when: str, tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    laid(media / "a.png", png(), TIMES[when])
    laid(tar(media / "b.tar", ("b.png", png(5))), (media / "b.tar").read_bytes(), TIMES[when])
    for width in (9, 1103):
        laid(media / "a.png", png(width), TIMES[when] + width)
        done = ended(tmp_path, "scan", "--data", "media", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["corpus"]["items"] == 2
        assert f" {width}×" in done.stderr, "the largest"


@pytest.mark.parametrize("when", TIMES)
def test_what_is_of_the_future_or_of_now_is_not_remembered(when: str, tmp_path: Path) -> None:
    """A clock that was set back lets a file change twice at one time."""
    path = laid(tmp_path / "a.png", b"x", TIMES[when])
    item = Item(str(path))
    kept = answer(ProbeTask(item, version=version(item)), behave).version
    status = path.stat()
    if status.st_mtime_ns > time.time_ns():
        assert kept == ""
    else:
        assert kept == f"{status.st_size}:{status.st_mtime_ns}"


@pytest.mark.parametrize("now_ns", [-DAY, 0, 1, NOW - DAY], ids=["before", "0", "1", "yesterday"])
def test_where_the_clock_was_set_back_nothing_new_is_settled(now_ns: int) -> None:
    assert not is_settled(f"1:{NOW}", now_ns)


def test_a_clock_that_jumps_keeps_a_cache_writing(tmp_path: Path, monkeypatch) -> None:
    """Only the monotonic one decides when to write; the other may say anything."""
    path = laid(tmp_path / "a.png", b"x", NOW - DAY)
    order = ProbeTask(Item(str(path)), version=version(Item(str(path))))
    with Cache(tmp_path / "c") as cache:
        for jump_ns in (0, -100 * 365 * DAY, 100 * 365 * DAY):
            monkeypatch.setattr(time, "time_ns", lambda jump_ns=jump_ns: NOW + jump_ns)
            cache.keep([(order, answer(order, behave))])
        cache.commit()
        assert cache.find([order]) == [behave_line()]


def behave_line() -> str:
    return '["image",5,1]'
