"""Hostile folders: names, links, special files, and files that go while they are read."""

import glob
import io
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mmcalib.census.counter import CorpusCount, count_corpus
from mmcalib.corpus.chat import Prompt
from mmcalib.corpus.folder import FolderSource, GlobSource, ListFile, PathsSource, StreamLines
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import ImageShape, Shape
from mmcalib.errors import CorpusError
from mmcalib.media.probe import probe
from mmcalib.results.calibration import skipped_jsonl
from tests.builders import expect
from tests.census.looking import prober
from tests.corpus.tars import png, tar


def items(root: Path, pattern: str) -> list[Item | Skipped]:
    """Of the folder, or of what matches in it, with paths below it."""
    source = GlobSource(f"{root}/{pattern}") if pattern else FolderSource(root)
    return [replace(one, path=os.path.relpath(one.path, root)) for one in source.items()]


def paths(root: Path, pattern: str = "") -> list[str]:
    return [one.path for one in items(root, pattern) if isinstance(one, Item)]


def skipped(root: Path, pattern: str = "") -> dict[str, str]:
    return {one.path: one.reason for one in items(root, pattern) if isinstance(one, Skipped)}


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png())


def test_order_is_sorted_and_hidden_names_are_left_out(tmp_path: Path) -> None:
    for name in ("b.jpg", "a/z.jpg", "a/b/c.png", "c.mp4", ".hidden.jpg", ".git/x.jpg", "a/.d"):
        photo(tmp_path / name)
    assert paths(tmp_path) == ["a/b/c.png", "a/z.jpg", "b.jpg", "c.mp4"]
    assert skipped(tmp_path) == {}
    assert list(FolderSource(tmp_path).prompts()) == []


def test_archives_stand_for_what_they_hold(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    (tmp_path / "folder.tar").mkdir()
    photo(tmp_path / "folder.tar" / "b.jpg")
    for name in ("x.TAR", "y.tgz", "z.tar.gz"):
        mode = "w" if name == "x.TAR" else "w:gz"
        tar(tmp_path / name, ("1.png", png()), ("1.txt", b"words"), mode=mode)
    source = FolderSource(tmp_path)
    assert [item.path for item in source.items()] == [
        str(tmp_path / "a.jpg"),
        str(tmp_path / "folder.tar" / "b.jpg"),
        *(f"tar://1.png::{tmp_path}/{name}" for name in ("x.TAR", "y.tgz", "z.tar.gz")),
    ]
    assert [prompt.request.text() for prompt in source.prompts() if isinstance(prompt, Prompt)] == (
        ["words"] * 3
    )
    assert len(list(FolderSource(tmp_path / "y.tgz").items())) == 1


NAMES = ("a.jpg", "a.png", "b/c.jpg", "b/d/e.jpg", "b/d/.f.jpg", "b2/c.jpg", ".g/h.jpg", "[1].jpg")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        photo(tmp_path / "media" / name)
    return tmp_path / "media"


@pytest.mark.parametrize(
    "pattern",
    [
        *("*.jpg", "**/*.jpg", "**/*", "*/*.jpg", "b*/c.jpg", "?.png", "[ab].*", "[!a]/c.jpg"),
        *("b/**/e.jpg", "**/d/**/*.jpg", "**/**/c.jpg", "**/.f.jpg", ".g/*.jpg", "[[]1].jpg"),
    ],
)
def test_files_are_those_of_the_standard_library(root: Path, pattern: str) -> None:
    theirs = glob.glob(f"{root}/{pattern}", recursive=True)
    files = {os.path.relpath(path, root) for path in theirs if os.path.isfile(path)}
    ours = paths(root, pattern)
    assert set(ours) == files
    assert len(ours) == len(files) > 0


def test_order_is_that_of_a_folder(root: Path) -> None:
    assert paths(root, "**/*.jpg") == ["[1].jpg", "a.jpg", "b/c.jpg", "b/d/e.jpg", "b2/c.jpg"]


def test_a_folder_that_matches_stands_for_all_below_it(root: Path) -> None:
    assert paths(root, "b*") == ["b/c.jpg", "b/d/e.jpg", "b2/c.jpg"]
    assert paths(root, "b/**") == ["b/c.jpg", "b/d/e.jpg"]


def test_relative_patterns_start_at_the_working_folder(root: Path, monkeypatch) -> None:
    monkeypatch.chdir(root)
    assert list(GlobSource("*.png").items()) == [Item(str(root / "a.png"))]
    assert list(GlobSource("./b/../*.png").items()) == [Item(str(root / "a.png"))]


def test_links_make_no_circles(root: Path) -> None:
    (root / "b" / "up").symlink_to(root)
    assert paths(root, "**/c.jpg") == ["b/c.jpg", "b2/c.jpg"]
    assert skipped(root, "**/c.jpg") == {"b/up": "folder already read under another name"}


def test_a_path_on_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [b"a.png\n", b"\n", b"/b/../c d .jpg\r\n", b"  \n", b"-x\n", b"/\xe9\n"]
    source = PathsSource([*lines, b"s3://b/a.png\n", b"last"])
    assert list(source.items()) == [
        Item(str(tmp_path / "a.png")),
        Item("/c d .jpg"),
        Item(str(tmp_path / "-x")),
        Item(os.fsdecode(b"/\xe9")),
        Item("s3://b/a.png"),
        Item(str(tmp_path / "last")),
    ]
    assert list(source.prompts()) == []


def test_a_file_of_paths_is_read_at_each_call(tmp_path: Path) -> None:
    # As Windows marks UTF-8.
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbf/a.png\n/b.png")
    source = PathsSource(ListFile(str(tmp_path / "list.txt")))
    assert list(source.items()) == list(source.items()) == [Item("/a.png"), Item("/b.png")]


def test_a_stream_serves_both_readings(tmp_path: Path) -> None:
    shard = tar(tmp_path / "x.tar", ("1.png", png()), ("1.txt", b"words"))
    source = PathsSource(StreamLines(io.BytesIO(f"{shard}\n/a.png".encode())))
    assert [one.request.text() for one in source.prompts() if isinstance(one, Prompt)] == ["words"]
    assert list(source.items()) == [Item(f"tar://1.png::{shard}"), Item("/a.png")]


@pytest.mark.parametrize("size", [(1 << 16) + 1, 3 << 20])
def test_a_line_that_is_too_long_is_skipped(size: int) -> None:
    long = b"x" * size
    for end in (b"", b"\n/a.png\n"):
        lines = StreamLines(io.BytesIO(long + b"\n/b.png\n" + long + end))
        first, good, second, *others = PathsSource(lines).items()
        assert expect(Skipped, first) == second
        assert (second.reason, len(second.path)) == ("line is longer than 64 KiB", 200)
        assert [good, *others] == [Item("/b.png"), Item("/a.png")][: 1 + bool(end)]


@pytest.mark.parametrize("lines", [[], [b"\n", b"  \n"]])
def test_a_list_without_a_path_is_an_error(lines: list[bytes]) -> None:
    with pytest.raises(CorpusError, match="list of paths is empty"):
        list(PathsSource(lines).items())


def read(root: Path, look: Callable[[Item], Shape | Skipped] = probe) -> CorpusCount:
    """The census of `root`, after checks that hold for every corpus."""
    taken = count_corpus([FolderSource(root)], prober(look))
    assert taken.census.items() + len(taken.skipped) == taken.files
    assert all(entry.shape == ImageShape(9, 8) for entry in taken.census.shapes())
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
        os.fsdecode(name): "name is not valid UTF-8",
        os.fsdecode(b"link-" + name[:9]): "broken link",
    }


def test_links_and_special_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    for path in (outside / "o.png", root / "a.png", root / "sub" / "z.png"):
        photo(path)
    os.mkfifo(root / "fifo.png")
    for name, target in {
        "zero.png": "/dev/zero",
        "terminal.png": "/dev/tty",
        "dangling.png": "nowhere.png",
        "loop.png": "pool.png",
        "pool.png": "loop.png",
        "self": "self",
        "through.png": "a.png/b.png",
        "here": ".",
        "sub/up": "..",
        "file.png": "../outside/o.png",
        "folder": "../outside",
    }.items():
        (root / name).symlink_to(target)
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.png")
        taken = read(root)
    assert taken.census.items() == 4
    assert paths(root) == ["a.png", "file.png", "folder/o.png", "sub/z.png"]
    special = ("fifo.png", "zero.png", "terminal.png", "socket.png")
    assert reasons(taken) == dict.fromkeys(special, "not a regular file") | {
        "dangling.png": "broken link",
        "loop.png": "circular link",
        "pool.png": "circular link",
        "self": "circular link",
        "through.png": "cannot be read: Not a directory",
        "here": "folder already read under another name",
        "up": "folder already read under another name",
    }


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
    # What goes when one is opened. All have been listed then, and none is opened before a.png.
    gone = {"a.png": ("b.png", "f/g.png"), **{f"{one}.png": (f"{one}.png",) for one in "cde"}}

    def look(item: Item) -> Shape | Skipped:
        path = Path(item.path)
        # What changed is looked at again.
        for name in gone.pop(path.name, ()):
            (tmp_path / name).unlink()
            if name == "f/g.png":
                (tmp_path / "f").rmdir()
            if name == "d.png":
                path.mkdir()
            if name == "e.png":
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
