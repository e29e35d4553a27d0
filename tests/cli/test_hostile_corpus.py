"""A corpus that means harm, and a user who types anything: headers only, no engine."""

import json
import os
import socket
import stat
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.test_usage import ends_well
from tests.corpus import tars
from tests.processes import started_with
from tests.security.bombs import zip_bomb
from tests.security.commands import started

TREE_FILES = 200


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    for number in range(TREE_FILES):
        Image.new("L", (10 + number % 7, 8)).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("@empty.txt", "the list of paths is empty"),
        ("words.tar", "words.tar: damaged: not a tar archive"),
        ("words.zip", "words.zip: damaged: "),
        ("words.parquet", "words.parquet: damaged: "),
    ],
)
def test_a_source_that_is_none_is_one_line(data: str, says: str, cli, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("fsspec")
    for ending in ("tar", "zip", "parquet"):
        (tmp_path / f"words.{ending}").write_text("words\n" * 200)
    (tmp_path / "empty.txt").write_text("\n")
    ended = cli("scan", "--data", data, "--quiet")
    assert (ended.code, ended.out) == (1, "")
    assert ends_well(ended.err)
    error, _ = ended.err.splitlines()
    assert says in error


def harm(folder: Path, elsewhere: Path) -> None:
    """Files that must be listed and do nothing; none of them is a medium by itself."""
    folder.mkdir()
    os.mkfifo(folder / "fifo.png")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(folder, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{here}/socket.png")
        os.close(here)
    if os.geteuid() == 0:
        os.mknod(folder / "zero.png", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    (folder / "zero-link.png").symlink_to("/dev/zero")
    (folder / "self.png").symlink_to("self.png")
    (folder / "loop").symlink_to(folder.parent)
    deep = folder.joinpath(*["d"] * 100)
    deep.mkdir(parents=True)
    for name in (b"$(touch pwned).txt", b"new\nline.txt", b"\xff.png", b"-rf", b"e" * 255):
        with open(os.path.join(os.fsencode(deep), name), "wb") as file:
            file.write(b"words")
    climbing = [("../../up.txt", b"w"), (f"{elsewhere}/abs.txt", b"w"), ("a/../../../b.txt", b"w")]
    tars.tar(folder / "climbing.tar", *climbing)
    link = tars.member("link.png", kind=tarfile.SYMTYPE, link="/etc/hostname")
    device = tars.member("zero.png", kind=tarfile.CHRTYPE)
    (folder / "links.tar").write_bytes(tars.blocks(link, device) + tars.END)
    (folder / "header.tar").write_bytes(tars.blocks(tars.member("a.png", 1 << 40)))
    tars.zipped(folder / "climbing.zip", ("../../up-too.txt", b"words"))
    zip_bomb(folder / "bomb.zip")
    (folder / "broken.parquet").write_bytes(b"PAR1" + bytes(99) + b"PAR1")


def below(folder: Path) -> dict[Path, int]:
    """Every name in a folder, with the size of what is a file."""
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {path: 0 if stat.S_ISDIR(one.st_mode) else one.st_size for path, one in found.items()}


def test_harm_changes_no_count_and_no_file(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cache, home = tmp_path / "cache", tmp_path / "home"
    home.mkdir()
    harm(tree / "harm", home)
    before = below(tmp_path)
    began = time.monotonic()
    process = started(tmp_path, "scan", "--data", tree, "--json", "--quiet")
    printed, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert time.monotonic() - began < 30
    found = json.loads(printed)
    corpus = found["corpus"]
    assert corpus["items"] == TREE_FILES
    assert corpus["files"] == corpus["items"] + corpus["skipped"]
    reasons = {}
    for entry in found["skipped"]:
        reasons[os.path.basename(entry["path"].partition("::")[0])] = entry["reason"]
    assert {"fifo.png", "socket.png", "zero-link.png", "self.png", "loop"} <= reasons.keys()
    assert {"up.txt", "abs.txt", "b.txt", "link.png", "bomb.zip", "new\nline.txt"} <= reasons.keys()
    assert {"up-too.txt", "header.tar", "broken.parquet", "-rf", "e" * 255} <= reasons.keys()
    after = {name: size for name, size in below(tmp_path).items() if name in before}
    assert after == before
    made = {path for path in below(tmp_path) if cache not in (path, *path.parents)}
    assert made - before.keys() == set()
    assert started_with(f"MMCALIB_CACHE_DIR={cache}\0") == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 128 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("needs root, and leave to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_for_what_is_remembered_is_a_note(tree, small_disk, tmp_path: Path) -> None:
    words = ["scan", "--data", tree]
    # Room for the tables, not for what is seen.
    (small_disk / "full").write_bytes(bytes(56 << 10))
    process = started(tmp_path, *words, MMCALIB_CACHE_DIR=small_disk / "cache")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err.count("the cache of probed files is off") == 1
    assert f"{TREE_FILES} items" in err
