"""A scan that is killed at any moment, and started again: nothing is wrong, and little is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from mmcalib.census.cache import Cache
from mmcalib.census.executors.executor import ProbeTask
from mmcalib.census.versions import version
from mmcalib.domain.items import Item
from tests.corpus import tars
from tests.corpus.serving import serving
from tests.processes import started_with, wait_until
from tests.security.commands import started

FILES, KILLS = 3000, 10
OLD_NS = 1_700_000_000_123_456_789


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    for number in range(FILES):
        path = folder / f"{number // 500}" / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tars.png(number % 97 + 1))
        os.utime(path, ns=(OLD_NS, OLD_NS))
    return folder


def remembered(home: Path) -> int:
    """How many files the cache on disk knows."""
    try:
        with closing(sqlite3.connect(f"file:{found(home)}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT COUNT(*) FROM seen").fetchone()[0])
    except (sqlite3.Error, StopIteration):
        return 0


def knows(home: Path, more_than: int) -> bool:
    return remembered(home) > more_than


def found(home: Path) -> Path:
    return next(home.rglob("census.sqlite3"))


def spoil(home: Path, media: Path) -> None:
    """Whoever looks again at a file that the cache knows will find no picture in it."""
    orders = [ProbeTask(i, False, version(i)) for i in map(Item, map(str, media.rglob("*.png")))]
    with Cache(found(home)) as cache:
        for start in range(0, len(orders), 500):
            some = orders[start : start + 500]
            for order, line in zip(some, cache.find(some), strict=True):
                if line is not None:
                    path = Path(order.item.path)
                    path.write_bytes(b"x" * path.stat().st_size)
                    os.utime(path, ns=(OLD_NS, OLD_NS))


@pytest.mark.slow
def test_a_scan_that_was_killed_goes_on_where_it_was(tmp_path: Path, media: Path) -> None:
    pytest.importorskip("aiohttp")
    chance = random.Random(21)
    before = 0
    with serving() as server:
        server.hang = threading.Event()  # so that no scan comes to its end
        slow = server.put("slow.png", tars.png(100))
        words = ("--data", media, "--data", slow, "--out", "out", "--json", "--quiet")
        for _ in range(KILLS):
            process = started(tmp_path, "scan", *words)
            if chance.random() < 0.7:  # else while it begins
                more_than = min(before, FILES - 1)
                wait_until(partial(knows, tmp_path, more_than), 60)
            time.sleep(chance.random() / 4)
            process.send_signal(signal.SIGKILL)
            _, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (-signal.SIGKILL, "")
            assert remembered(tmp_path) >= before
            before = remembered(tmp_path)
            assert not (tmp_path / "out" / "census.json").exists()
        wait_until(lambda: started_with(f"HOME={tmp_path}\0") == [], 30)
        assert before > 0
        spoil(tmp_path, media)
        server.hang.set()
        server.hang = None
        process = started(tmp_path, "scan", *words)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    corpus = json.loads(out)["corpus"]
    assert (corpus["items"], corpus["skipped"]) == (FILES + 1, 0)
    assert corpus["modalities"]["image"]["unique_shapes"] == 98
