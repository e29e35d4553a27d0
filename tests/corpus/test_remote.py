"""Media behind URLs, with file systems of fsspec that need no network."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmcalib.census.counter import count_corpus
from mmcalib.corpus.chat import Prompt
from mmcalib.corpus.remote import RemoteSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.errors import CorpusError, UsageError
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import probe
from mmcalib.storage import remote
from mmcalib.storage.access import local_copy
from mmcalib.storage.location import allow_hosts
from tests.census.looking import prober
from tests.corpus.listed import items_of, reason
from tests.corpus.media import png, wav
from tests.corpus.serving import Served, serving
from tests.corpus.tars import tar, zipped
from tests.odd_media import clips
from tests.programs import run_python

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


def test_objects_are_measured_where_they_are_in_the_order_of_a_folder(memory, tmp_path) -> None:
    found = items_of(RemoteSource("memory://bucket"))
    assert [(item.path, probe(item)) for item in found] == [
        ("memory:///bucket/a/b/d.png", ImageShape(41, 24)),
        ("memory:///bucket/a/c.wav", AudioShape(8000, 16000)),
        ("memory:///bucket/b.png", ImageShape(40, 24)),
    ]
    assert Path(local_copy(found[2].path, tmp_path)).read_bytes() == png(40, 24)


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
    items = items_of(RemoteSource(f"memory://bucket/{pattern}"))
    assert [item.path for item in items] == [f"memory:///bucket/{name}" for name in found]


def test_what_changes_has_another_version(memory) -> None:
    def held() -> Any:
        (item,) = items_of(RemoteSource("memory://bucket/b.png"))
        return item.byte_source

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


@pytest.mark.parametrize("pattern", ["", "/*.*"])
def test_archives_among_the_objects_are_read_as_what_they_hold(tmp_path, pattern: str) -> None:
    # They are read by another process, so they cannot be in the memory of this one.
    zipped(tmp_path / "a.zip", ("a.png", png(40, 24)))
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


def test_nothing_there_is_an_error(memory) -> None:
    with pytest.raises(CorpusError, match="nothing found at memory://bucket/none"):
        list(RemoteSource("memory://bucket/none").items())
    with pytest.raises(CorpusError, match="no files below"):
        list(RemoteSource("memory://bucket/*.gif").items())


def test_an_unknown_scheme_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="unsupported scheme: nosuch://"):
        RemoteSource("nosuch://bucket")


@pytest.mark.parametrize("url", ["zip:///data/a.zip", "tar:///data/a.tar", "parquet:///a.parquet"])
def test_an_archive_is_named_by_its_path(url: str) -> None:
    with pytest.raises(UsageError, match="cannot list") as caught:
        RemoteSource(url)
    assert caught.value.hint == f"--data {url.partition('://')[2]}"


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
    done = run_python("-c", MISSING, check=True)
    assert done.stdout.splitlines() == [
        "pip install 'mmcalib[remote]'",
        "pip install 'mmcalib[remote]'",
        "pip install 'mmcalib[parquet]'",
    ]


pytest.importorskip("aiohttp")
SIDE = 2700


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served, allow_hosts(["127.0.0.1"]):
        yield served


def photo(form: str, **options: object) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    Image.fromarray(noise).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("form", "options"), [("JPEG", {"quality": 99}), ("PNG", {"compress_level": 0}), ("TIFF", {})]
)
def test_an_image_of_megabytes_costs_some_kilobytes(served: Served, form, options) -> None:
    data = photo(form, **options)
    assert len(data) > 10_000_000
    assert probe(Item(served.put("photo", data))) == ImageShape(SIDE, SIDE)
    assert 0 < served.sent_bytes <= 0.05 * len(data)


@pytest.mark.parametrize("flags", [{}, {"movflags": "faststart"}], ids=["behind", "in-front"])
def test_a_video_costs_its_index_and_a_frame(served: Served, tmp_path: Path, flags) -> None:
    data = clips(tmp_path / "a.mp4", (1200, 900), frames=45, options=flags).read_bytes()
    assert len(data) > 10_000_000
    assert probe(Item(served.put("a.mp4", data))) == VideoShape(45, 10.0, 4.5, 1200, 900)
    assert 0 < served.sent_bytes <= 0.10 * len(data)


def test_what_is_decoded_is_read_whole(served: Served) -> None:
    data = png(640, 480)
    assert decode_check(Item(served.put("a.png", data)), "image") is None
    assert decode_check(Item(served.put("b.png", data[:-9000])), "image") is not None


@pytest.mark.parametrize("says", [True, False])
def test_a_server_without_ranges_sends_small_files_whole(served, tmp_path, says: bool) -> None:
    served.ranges, served.says_ranges = False, says
    assert probe(Item(served.put("a.png", png(40, 24)))) == ImageShape(40, 24)
    data = clips(tmp_path / "a.mp4", (1200, 900)).read_bytes()
    assert probe(Item(served.put("a.mp4", data))) == VideoShape(20, 10.0, 2.0, 1200, 900)


def test_a_server_without_ranges_does_not_fill_the_memory(served: Served, monkeypatch) -> None:
    monkeypatch.setattr(remote, "MOST_WHOLE_BYTES", 1000)
    served.ranges = False
    found = probe(Item(served.put("a.png", png(40, 24) + bytes(9000))))
    assert "without range requests" in reason(found)


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_refusal_is_one_skipped_item(served: Served, status: int) -> None:
    url = served.put("a.png", png(40, 24))
    served.status = status
    assert probe(Item(url)) == Skipped(url, f"cannot be read: the server answers {status}")


def test_one_object_of_a_web_server_is_a_corpus(served: Served) -> None:
    url = served.put("a.png?size=large", png(40, 24))
    assert list(RemoteSource(url).items()) == [Item(url)]
    assert probe(Item(url)) == ImageShape(40, 24)
