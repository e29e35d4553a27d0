from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mmcalib.corpus.folder import FolderSource
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import CorpusError
from tests.corpus.tars import png, tar


def paths(root: Path) -> list[str]:
    found = FolderSource(root).items()
    return [os.path.relpath(item.path, root) for item in found if isinstance(item, Item)]


def skipped(root: Path) -> dict[str, str]:
    found = FolderSource(root).items()
    return {
        os.path.relpath(item.path, root): item.reason for item in found if isinstance(item, Skipped)
    }


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_order_is_sorted_and_hidden_names_are_left_out(tmp_path: Path) -> None:
    for name in ("b.jpg", "a/z.jpg", "a/b/c.png", "c.mp4", ".hidden.jpg", ".git/x.jpg", "a/.d"):
        touch(tmp_path / name)
    assert paths(tmp_path) == ["a/b/c.png", "a/z.jpg", "b.jpg", "c.mp4"]
    assert skipped(tmp_path) == {}
    assert list(FolderSource(tmp_path).prompts()) == []


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "a.jpg")
    monkeypatch.chdir(tmp_path)
    assert list(FolderSource(".").items()) == [Item(str(tmp_path / "a.jpg"))]


def test_names_may_hold_anything(tmp_path: Path) -> None:
    names = ["new\nline.jpg", "quo\"te'.jpg", "spa ce.jpg", "%41.jpg", "ü.jpg", "a:b.jpg"]
    for name in names:
        touch(tmp_path / name)
    (tmp_path / os.fsdecode(b"latin-\xe9.jpg")).write_bytes(b"x")
    assert len(paths(tmp_path)) == len(names) + 1


def test_one_file_is_a_corpus(tmp_path: Path) -> None:
    path = touch(tmp_path / "a.jpg")
    assert list(FolderSource(path).items()) == [Item(str(path))]


def test_links(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    touch(outside / "o.jpg")
    touch(root / "sub" / "a.jpg")
    (root / "file.jpg").symlink_to(outside / "o.jpg")
    (root / "folder").symlink_to(outside)
    (root / "sub" / "up").symlink_to(root)
    (root / "self").symlink_to("self")
    (root / "dangling.jpg").symlink_to("nowhere.jpg")
    assert paths(root) == ["file.jpg", "folder/o.jpg", "sub/a.jpg"]
    assert skipped(root) == {
        "dangling.jpg": "dangling link",
        "self": "link that leads back to itself",
        "sub/up": "folder already read under another name",
    }


def test_what_is_no_regular_file_is_listed(tmp_path: Path, monkeypatch) -> None:
    touch(tmp_path / "a.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        assert skipped(tmp_path) == dict.fromkeys(("pipe.jpg", "socket.jpg"), "not a regular file")
    assert list(FolderSource("/dev/null").items()) == [Skipped("/dev/null", "not a regular file")]


@pytest.mark.usefixtures("ordinary_user")
def test_unreadable_folder_is_listed(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg")
    touch(tmp_path / "locked" / "b.jpg")
    (tmp_path / "locked").chmod(0)
    try:
        assert paths(tmp_path) == ["a.jpg"]
        assert skipped(tmp_path) == {"locked": "no permission to read it"}
    finally:
        (tmp_path / "locked").chmod(0o700)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no such folder: .*/none") as caught:
        FolderSource(tmp_path / "none")
    assert caught.value.hint


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    touch(tmp_path / ".DS_Store")
    with pytest.raises(CorpusError, match="no files in folder"):
        list(FolderSource(tmp_path).items())


def test_archives_stand_for_what_they_hold(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg")
    (tmp_path / "folder.tar").mkdir()
    touch(tmp_path / "folder.tar" / "b.jpg")
    for name in ("x.TAR", "y.tgz", "z.tar.gz"):
        mode = "w" if name == "x.TAR" else "w:gz"
        tar(tmp_path / name, ("1.png", png()), ("1.txt", b"words"), mode=mode)
    source = FolderSource(tmp_path)
    assert [item.path for item in source.items()] == [
        str(tmp_path / "a.jpg"),
        str(tmp_path / "folder.tar" / "b.jpg"),
        *(f"tar://1.png::{tmp_path}/{name}" for name in ("x.TAR", "y.tgz", "z.tar.gz")),
    ]
    assert [prompt.text for prompt in source.prompts() if isinstance(prompt, Prompt)] == (
        ["words"] * 3
    )
    assert len(list(FolderSource(tmp_path / "y.tgz").items())) == 1
