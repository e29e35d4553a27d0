import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmcalib.corpus.resolve import find_sources
from mmcalib.domain.items import Item
from mmcalib.errors import UsageError
from tests.corpus.tars import png, tar


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "media").mkdir()
    for name in ("1.png", "2.png"):
        (tmp_path / "media" / name).write_bytes(png())
    return tmp_path


def paths(data: str | Path) -> list[str]:
    found = [item for one in find_sources(data) for item in one.items()]
    assert all(isinstance(item, Item) for item in found)
    return [os.path.relpath(item.path) if item.path[:1] == "/" else item.path for item in found]


def test_a_folder_a_file_a_list_or_a_url(folder: Path) -> None:
    assert paths("media") == paths(folder / "media") == ["media/1.png", "media/2.png"]
    assert paths("media/1.png") == ["media/1.png"]
    (folder / "list.txt").write_text("media/2.png\n")
    assert paths("@list.txt") == ["media/2.png"]
    shard = tar(folder / "x.tar", ("1.png", png()))
    assert paths(f"file://{shard}") == [f"tar://1.png::file://{shard}"]


def test_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"media/2.png\n")))
    assert paths("-") == ["media/2.png"]


def test_braces_name_one_after_the_other(folder: Path) -> None:
    for number in range(3):
        tar(folder / f"{number:03}.tar", (f"{number}.png", png()))
    assert paths("{002..001}.tar") == [
        f"tar://2.png::{folder}/002.tar",
        f"tar://1.png::{folder}/001.tar",
    ]
    assert paths("media/{2,1}.png") == ["media/2.png", "media/1.png"]
    assert paths("{00[01].tar,media/1.*}") == [
        f"tar://0.png::{folder}/000.tar",
        f"tar://1.png::{folder}/001.tar",
        "media/1.png",
    ]


def test_more_braces_than_can_be_meant() -> None:
    with pytest.raises(UsageError, match="more than 1,000,000 names"):
        list(find_sources("{0..99999}{0..99999}.tar"))


@pytest.mark.parametrize("name", ["a[1].png", "@list.png", "{1,2}.png", "*.png", "what?.png"])
def test_what_exists_by_its_very_name_is_that_file(folder: Path, name: str) -> None:
    (folder / name).write_bytes(png())
    assert paths(name) == paths(Path(name)) == [name]


@pytest.mark.parametrize("data", ["", "file://"])
def test_no_name_at_all_is_not_the_working_folder(data: str) -> None:
    with pytest.raises(UsageError, match="is empty"):
        paths(data)
