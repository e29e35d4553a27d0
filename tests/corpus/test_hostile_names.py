"""Hostile folders: names, links, special files, and files that go while they are read."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.census.counter import CorpusCount, count_corpus
from mmcalib.corpus.folder import FolderSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import ImageShape, Shape
from mmcalib.media.probe import probe
from mmcalib.results.calibration import skipped_jsonl
from tests.census.looking import prober

GOOD = ImageShape(9, 8)


def photo(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (9, 8)).save(path, format="PNG")
    return path


def read(root: Path, look: Callable[[Item], Shape | Skipped] = probe) -> CorpusCount:
    """The census of `root`, after checks that hold for every corpus."""
    taken = count_corpus([FolderSource(root)], prober(look))
    assert taken.census.items() + len(taken.skipped) == taken.files
    assert all(entry.shape == GOOD for entry in taken.census.shapes())
    assert all(0 < len(s.reason) <= 200 and s.reason.isprintable() for s in taken.skipped)
    assert skipped_jsonl(taken.skipped).isascii()
    assert skipped_jsonl(taken.skipped).count("\n") == len(taken.skipped)
    return taken


def reasons(taken: CorpusCount) -> dict[str, str]:
    return {os.path.basename(one.path): one.reason for one in taken.skipped}


@pytest.mark.parametrize(
    "name",
    [
        *("n" * 255, "ü" * 127, "new\nline.png", "tab\t.png", "quo\"te'.png", "-rf", "--out=x"),
        *("~", "$HOME", "*", "con|cat:x.png", "http:", "\x1b[31mred.png", "\u202egnp.exe", "%00"),
    ],
)
def test_a_name_may_be_anything(tmp_path: Path, name: str) -> None:
    photo(tmp_path / name)
    photo(tmp_path / "good.png")
    assert read(tmp_path).census.items() == 2


@pytest.mark.parametrize("name", [b"latin-\xe9.png", b"\xff\xfe", b"\x80" * 255])
def test_a_name_that_is_not_utf_8_is_skipped(tmp_path: Path, name: bytes) -> None:
    photo(tmp_path / "good.png")
    photo(tmp_path / os.fsdecode(name))
    (tmp_path / os.fsdecode(b"link-" + name[:9])).symlink_to("nowhere")
    taken = read(tmp_path)
    assert taken.census.items() == 1
    assert reasons(taken) == {
        os.fsdecode(name): "its name is not valid UTF-8",
        os.fsdecode(b"link-" + name[:9]): "dangling link",
    }


def test_links_and_special_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(tmp_path / "a.png")
    photo(tmp_path / "z.png")
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "terminal.png").symlink_to("/dev/tty")
    (tmp_path / "dangling.png").symlink_to("nowhere.png")
    (tmp_path / "loop.png").symlink_to("pool.png")
    (tmp_path / "pool.png").symlink_to("loop.png")
    (tmp_path / "through.png").symlink_to("a.png/b.png")
    (tmp_path / "here").symlink_to(".")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.png")
        taken = read(tmp_path)
    assert taken.census.items() == 2
    special = ("fifo.png", "zero.png", "terminal.png", "socket.png")
    assert reasons(taken) == dict.fromkeys(special, "not a regular file") | {
        "dangling.png": "dangling link",
        "loop.png": "link that leads back to itself",
        "pool.png": "link that leads back to itself",
        "through.png": "cannot be read: Not a directory",
        "here": "folder already read under another name",
    }


@pytest.mark.usefixtures("ordinary_user")
def test_an_unreadable_file_is_skipped(tmp_path: Path) -> None:
    photo(tmp_path / "a.png")
    photo(tmp_path / "locked.png").chmod(0)
    assert reasons(read(tmp_path)) == {"locked.png": "no permission to read it"}


def test_a_hundred_folders_deep(tmp_path: Path) -> None:
    photo(tmp_path / "a.png")
    photo(tmp_path.joinpath(*["d"] * 100) / "deep.png")
    assert read(tmp_path).census.items() == 2


def test_deeper_than_a_path_may_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    for _ in range(20):
        os.mkdir("d" * 255)
        os.chdir("d" * 255)
    photo(Path("deep.png"))
    os.chdir(tmp_path)
    taken = read(tmp_path)
    assert taken.census.items() == 1
    assert list(reasons(taken).values()) == ["cannot be read: File name too long"]


def test_files_that_change_after_they_were_listed(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png", "d.png", "e.png", "f/g.png", "h.png"):
        photo(tmp_path / name)

    acted: set[str] = set()

    def look(item: Item) -> Shape | Skipped:
        path = Path(item.path)
        if path.name in acted:  # what changed is looked at again
            return probe(item)
        acted.add(path.name)
        if path.name == "a.png":  # all have been listed; none of the others is opened yet
            (tmp_path / "b.png").unlink()
            (tmp_path / "f" / "g.png").unlink()
            (tmp_path / "f").rmdir()
        elif path.name in ("c.png", "d.png", "e.png"):
            path.unlink()
        if path.name == "d.png":
            path.mkdir()
        if path.name == "e.png":
            path.touch()
        return probe(item)

    taken = read(tmp_path, look)
    assert taken.census.items() == 2
    assert reasons(taken) == {
        "b.png": "no such file",
        "c.png": "no such file",
        "d.png": "not a regular file",
        "e.png": "empty file",
        "g.png": "no such file",
    }
