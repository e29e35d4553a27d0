from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from mmcalib.corpus.folder import ListFile, PathsSource, StreamLines
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import CorpusError
from tests.corpus.tars import png, tar


def test_a_path_on_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [b"a.png\n", b"\n", b"/b/../c d .jpg\r\n", b"  \n", b"-x\n", b"/\xe9\n", b"last"]
    source = PathsSource(lines)
    assert list(source.items()) == [
        Item(str(tmp_path / "a.png")),
        Item("/c d .jpg"),
        Item(str(tmp_path / "-x")),
        Item(os.fsdecode(b"/\xe9")),
        Item(str(tmp_path / "last")),
    ]
    assert list(source.prompts()) == []


def test_a_url_on_a_line_stays_one() -> None:
    assert list(PathsSource([b"s3://b/a.png\n"]).items()) == [Item("s3://b/a.png")]


def test_a_file_of_paths_is_read_at_each_call(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"/a.png\n/b.png")
    source = PathsSource(ListFile(str(tmp_path / "list.txt")))
    assert list(source.items()) == list(source.items()) == [Item("/a.png"), Item("/b.png")]


def test_a_list_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such list of paths"):
        ListFile(str(tmp_path / "none.txt"))


def test_a_stream_serves_both_readings(tmp_path: Path) -> None:
    shard = tar(tmp_path / "x.tar", ("1.png", png()), ("1.txt", b"words"))
    source = PathsSource(StreamLines(io.BytesIO(f"{shard}\n/a.png".encode())))
    assert [prompt.text for prompt in source.prompts() if isinstance(prompt, Prompt)] == ["words"]
    assert list(source.items()) == [Item(f"tar://1.png::{shard}"), Item("/a.png")]


@pytest.mark.parametrize("size", [(1 << 16) + 1, 3 << 20])
def test_a_line_that_is_too_long_is_skipped(size: int) -> None:
    long = b"x" * size
    for end in (b"", b"\n/a.png\n"):
        lines = StreamLines(io.BytesIO(long + b"\n/b.png\n" + long + end))
        first, good, second, *others = PathsSource(lines).items()
        assert isinstance(first, Skipped)
        assert first == second
        assert (first.reason, len(first.path)) == ("line of more than 64 KiB", 200)
        assert [good, *others] == [Item("/b.png"), Item("/a.png")][: 1 + bool(end)]


@pytest.mark.parametrize("lines", [[], [b"\n", b"  \n"]])
def test_a_list_without_a_path_is_an_error(lines: list[bytes]) -> None:
    with pytest.raises(CorpusError, match="no path"):
        list(PathsSource(lines).items())
