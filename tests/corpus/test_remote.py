"""What lies behind URLs, with file systems of fsspec that need no network."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcalib.census.counter import count_corpus
from mmcalib.corpus.remote import RemoteSource
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.errors import CorpusError, UsageError
from mmcalib.media.probe import probe
from mmcalib.storage.location import local_copy
from tests.census.looking import prober
from tests.corpus.listed import items_of
from tests.corpus.media import png, wav
from tests.corpus.tars import tar

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    store.pipe(
        {
            "/bucket/b.png": png(40, 24),
            "/bucket/a/c.wav": wav(8000),
            "/bucket/a/b/d.png": png(41, 24),
            "/bucket/.hidden/e.png": png(1, 1),
            "/bucket/a/.f.png": png(1, 1),
        }
    )
    yield store
    store.rm("/bucket", recursive=True)


def paths(url: str) -> list[str]:
    return [found.path for found in RemoteSource(url).items()]


def test_objects_are_items_in_the_order_of_a_folder(memory) -> None:
    assert paths("memory://bucket") == [
        "memory:///bucket/a/b/d.png",
        "memory:///bucket/a/c.wav",
        "memory:///bucket/b.png",
    ]


def test_objects_are_measured_where_they_are(memory, tmp_path: Path) -> None:
    found = items_of(RemoteSource("memory://bucket"))
    assert [probe(item) for item in found] == [
        ImageShape(41, 24),
        AudioShape(8000, 16000),
        ImageShape(40, 24),
    ]
    assert Path(local_copy(found[2].path, tmp_path)).read_bytes() == png(40, 24)


def test_one_object_is_a_corpus(memory) -> None:
    assert paths("memory://bucket/b.png") == ["memory:///bucket/b.png"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.png", ["b.png"]),
        ("*/*.wav", ["a/c.wav"]),
        ("**/*.png", ["a/b/d.png", "b.png"]),
        ("[ab].png", ["b.png"]),
        ("a/?.wav", ["a/c.wav"]),
    ],
)
def test_patterns(memory, pattern: str, found: list[str]) -> None:
    assert paths(f"memory://bucket/{pattern}") == [f"memory:///bucket/{name}" for name in found]


def test_what_changes_has_another_version(memory) -> None:
    def held() -> Any:
        (item,) = items_of(RemoteSource("memory://bucket/b.png"))
        return item.held

    first = held()
    assert first.size_bytes == len(png(40, 24))
    assert held().version == first.version
    memory.pipe("/bucket/b.png", png(41, 24))
    assert held().version != first.version


def test_an_object_that_went_away_is_skipped(memory) -> None:
    (item,) = items_of(RemoteSource("memory://bucket/b.png"))
    memory.rm("/bucket/b.png")
    assert probe(item) == Skipped("memory:///bucket/b.png", "no such file")
    memory.pipe("/bucket/b.png", b"")


def test_a_name_that_looks_like_an_archive_is_skipped(memory) -> None:
    memory.pipe("/bucket/x/a::b.png", png(1, 1))
    (found,) = RemoteSource("memory://bucket/x").items()
    assert isinstance(found, Skipped)


@pytest.mark.parametrize("pattern", ["", "/*.*"])
def test_archives_among_the_objects_are_read_as_what_they_hold(
    tmp_path: Path, pattern: str
) -> None:
    # They are read by another process, so they cannot be in the memory of this one.
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.png", png(40, 24))
    tar(tmp_path / "b.tar", ("a.png", png(40, 24)), ("a.txt", b"words"))
    source = RemoteSource(f"file://{tmp_path}{pattern}")
    found = items_of(source)
    assert [item.path for item in found] == [
        f"zip://a.png::file://{tmp_path}/a.zip",
        f"tar://a.png::file://{tmp_path}/b.tar",
    ]
    for item in found:
        assert probe(item) == probe(Item(item.path)) == ImageShape(40, 24)
    assert [p.items for p in source.prompts() if isinstance(p, Prompt)] == [(found[1],)]


def test_files_by_url_like_files_by_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(40, 24))
    (tmp_path / "words.txt").write_text("words")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "link.png").symlink_to("a.png")
    (tmp_path / "dangling.png").symlink_to("none.png")
    taken = count_corpus([RemoteSource(f"file://{tmp_path}")], prober())
    assert [entry.shape for entry in taken.census.shapes()] == [ImageShape(40, 24)]
    assert {os.path.basename(s.path): s.reason for s in taken.skipped} == {
        "dangling.png": "not a regular file",
        "loop": "link to a folder",
        "pipe": "not a regular file",
        "words.txt": "not an image, video or audio file (text)",
    }


def test_a_pipe_by_url_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert isinstance(probe(Item(f"file://{tmp_path}/pipe")), Skipped)


def test_nothing_there_is_an_error(memory) -> None:
    with pytest.raises(CorpusError, match="nothing at memory://bucket/none"):
        list(RemoteSource("memory://bucket/none").items())
    with pytest.raises(CorpusError, match="nothing below"):
        list(RemoteSource("memory://bucket/*.gif").items())


def test_an_unknown_scheme_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="no file system for nosuch://"):
        RemoteSource("nosuch://bucket")


@pytest.mark.parametrize("url", ["zip:///data/a.zip", "tar:///data/a.tar", "parquet:///a.parquet"])
def test_an_archive_is_named_by_its_path(url: str) -> None:
    with pytest.raises(UsageError, match="cannot list") as caught:
        RemoteSource(url)
    assert caught.value.hint == f"--data {url.partition('://')[2]}"


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(UsageError) as caught:
        RemoteSource("s3://bucket")
    assert caught.value.hint == "pip install 'mmcalib[s3]'"


MISSING = """
import sys
sys.modules["fsspec"] = sys.modules["pyarrow"] = None
from mmcalib.corpus.folder import PathsSource
from mmcalib.errors import UsageError
from mmcalib.domain.items import Item
from mmcalib.media.probe import probe
for path in ("memory://a.png", "https://localhost/a.png", "parquet://0/a::/a.parquet"):
    try:
        probe(Item(path))
    except UsageError as error:
        print(error.hint)
"""


def test_without_the_packages_the_first_item_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "pip install 'mmcalib[remote]'",
        "pip install 'mmcalib[remote]'",
        "pip install 'mmcalib[parquet]'",
    ]
