"""A scan that is killed at any moment, and run again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import soundfile
from PIL import Image

from mmcalib.census.cache import Cache
from mmcalib.census.executors.executor import ProbeTask
from mmcalib.census.versions import version
from mmcalib.domain.items import Item
from tests.processes import started_with

KILLS = 20
FILES = 6000


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of many shapes, sounds, and what is no medium, all of an older time."""
    root = tmp_path_factory.mktemp("tree")
    for n in range(60):
        Image.new("RGB", (10 + n, 10)).save(root / f"{n:02}.png")
    soundfile.write(root / "a.wav", [0.0] * 800, 8000)
    (root / "words.txt").write_text("words")
    (root / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    old = time.time() - 1000.5
    for path in root.iterdir():
        os.utime(path, (old, old))
    sources = sorted(root.iterdir())
    for n in range(FILES - len(sources)):
        source = sources[n % len(sources)]
        folder = root / f"{n // 100:03}"
        folder.mkdir(exist_ok=True)
        os.link(source, folder / f"{n:05}{source.suffix}")
    return root


def scan(tree: Path, cache: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "mmcalib", "scan", "--data", tree, "--json", "--quiet"],
        env={**os.environ, "MMCALIB_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def printed(tree: Path, cache: Path) -> bytes:
    """What a scan prints that is not killed."""
    process = scan(tree, cache)
    out, _ = process.communicate()
    assert process.returncode == 0
    return out


def remembered(cache: Path) -> int:
    if not (cache / "census.sqlite3").exists():
        return 0
    with sqlite3.connect(cache / "census.sqlite3") as db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE name = 'seen'").fetchall()
        return int(db.execute("SELECT count(*) FROM seen").fetchone()[0]) if tables else 0


@contextmanager
def spoiled(tree: Path, cache: Path, aside: Path) -> Iterator[int]:
    """While whoever reads again what the cache knows finds zeros, of the same size and time."""
    tasks = [ProbeTask(i, False, version(i)) for i in map(Item, map(str, tree.rglob("*.*")))]
    known: list[Path] = []
    if (cache / "census.sqlite3").exists():
        with Cache(cache / "census.sqlite3") as seen:
            for start in range(0, len(tasks), 500):
                some = tasks[start : start + 500]
                found = zip(some, seen.find(some), strict=True)
                known += [Path(task.item.path) for task, line in found if line is not None]
    aside.mkdir()
    for path in known:
        status = path.stat()
        path.rename(aside / path.name)
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    yield len(known)
    for path in known:
        (aside / path.name).replace(path)
    aside.rmdir()


@pytest.mark.slow
def test_a_killed_scan_goes_on_to_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    whole = printed(tree, tmp_path / "cache")
    assert b'"items": ' in whole
    chance = random.Random(5)
    kept = 0
    for kill in range(KILLS):
        cache = tmp_path / f"cache{kill}"
        process = scan(tree, cache)
        # By what it has done: how long that takes is the machine's affair.
        enough = chance.randrange(FILES)
        while process.poll() is None and remembered(cache) < enough:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = remembered(cache)
        with spoiled(tree, cache, tmp_path / "aside") as known:
            kept += 0 < known < FILES
            assert printed(tree, cache) == whole
        assert remembered(cache) >= before
        shutil.rmtree(cache)
    assert kept >= 1
    assert started_with(f"MMCALIB_CACHE_DIR={tmp_path}") == []


def test_a_second_scan_touches_no_medium(tree: Path, tmp_path: Path) -> None:
    first = printed(tree, tmp_path / "cache")
    # Were a file read again, its size would tell that it is another one.
    times = {path: path.stat() for path in tree.iterdir() if path.is_file()}
    for path, status in times.items():
        if path.suffix == ".png":
            data = path.read_bytes()
            with path.open("r+b") as file:
                file.write(bytes(len(data)))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert printed(tree, tmp_path / "cache") == first
