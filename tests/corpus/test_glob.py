from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest

from mmcalib.corpus.folder import GlobSource
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import CorpusError
from tests.corpus.tars import png, tar

NAMES = ("a.jpg", "a.png", "b/c.jpg", "b/d/e.jpg", "b/d/.f.jpg", "b2/c.jpg", ".g/h.jpg", "[1].jpg")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / "media" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "media"


def found(root: Path, pattern: str) -> list[str]:
    items = GlobSource(f"{root}/{pattern}").items()
    return [os.path.relpath(item.path, root) for item in items if isinstance(item, Item)]


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
    ours = found(root, pattern)
    assert set(ours) == files
    assert len(ours) == len(files) > 0


def test_order_is_that_of_a_folder(root: Path) -> None:
    assert found(root, "**/*.jpg") == ["[1].jpg", "a.jpg", "b/c.jpg", "b/d/e.jpg", "b2/c.jpg"]


def test_a_folder_that_matches_stands_for_all_below_it(root: Path) -> None:
    assert found(root, "b*") == ["b/c.jpg", "b/d/e.jpg", "b2/c.jpg"]
    assert found(root, "b/**") == ["b/c.jpg", "b/d/e.jpg"]


def test_relative_patterns_start_at_the_working_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    assert list(GlobSource("*.png").items()) == [Item(str(root / "a.png"))]
    assert list(GlobSource("./b/../*.png").items()) == [Item(str(root / "a.png"))]


@pytest.mark.parametrize("pattern", ["*.tiff", "none/*.jpg", "a.jpg/*"])
def test_a_pattern_without_a_match_is_an_error(root: Path, pattern: str) -> None:
    with pytest.raises(CorpusError, match="no file matches: "):
        list(GlobSource(f"{root}/{pattern}").items())


def test_links_make_no_circles(root: Path) -> None:
    (root / "b" / "up").symlink_to(root)
    items = list(GlobSource(f"{root}/**/c.jpg").items())
    assert [item.path for item in items if isinstance(item, Item)] == [
        f"{root}/b/c.jpg",
        f"{root}/b2/c.jpg",
    ]
    assert [item for item in items if isinstance(item, Skipped)] == [
        Skipped(f"{root}/b/up", "folder already read under another name")
    ]


def test_what_matches_and_is_no_regular_file_is_listed(root: Path) -> None:
    os.mkfifo(root / "pipe.jpg")
    os.mkfifo(root / "pipe.png")
    (root / "dangling.jpg").symlink_to("nowhere")
    assert [one for one in GlobSource(f"{root}/*.jpg").items() if isinstance(one, Skipped)] == [
        Skipped(f"{root}/dangling.jpg", "dangling link"),
        Skipped(f"{root}/pipe.jpg", "not a regular file"),
    ]


def test_archives_that_match_are_read(root: Path) -> None:
    tar(root / "x.tar", ("1.png", png()), ("1.txt", b"words"))
    source = GlobSource(f"{root}/*.tar")
    assert list(source.items()) == [Item(f"tar://1.png::{root}/x.tar")]
    assert [prompt.text for prompt in source.prompts() if isinstance(prompt, Prompt)] == ["words"]
