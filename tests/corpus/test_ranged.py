"""A header is read from a web server without fetching the file."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from mmcalib.corpus.remote import RemoteSource
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import probe
from mmcalib.storage import remote
from mmcalib.storage.location import allowing
from tests.corpus.media import png
from tests.corpus.serving import Served, serving

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")

SIDE = 2700


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served, allowing(["127.0.0.1"]):
        yield served


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def photo(form: str, **options: object) -> bytes:
    file = io.BytesIO()
    noise(SIDE, SIDE).save(file, form, **options)
    return file.getvalue()


def clip(path: Path, **options: str) -> bytes:
    """Twenty pictures of a megabyte each."""
    picture = io.BytesIO()
    noise(1200, 900).save(picture, "JPEG", quality=97)
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mjpeg", rate=Fraction(10))
        stream.width, stream.height, stream.pix_fmt = 1200, 900, "yuvj420p"
        for number in range(20):
            packet = av.Packet(picture.getvalue())
            packet.stream, packet.time_base = stream, Fraction(1, 10)
            packet.pts = packet.dts = number
            packet.is_keyframe = True
            container.mux(packet)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("form", "options"),
    [("JPEG", {"quality": 99}), ("PNG", {"compress_level": 0}), ("TIFF", {})],
)
def test_an_image_of_megabytes_costs_some_kilobytes(served: Served, form, options) -> None:
    data = photo(form, **options)
    assert len(data) > 10_000_000
    url = served.put("photo", data)
    assert probe(Item(url)) == ImageShape(SIDE, SIDE)
    assert 0 < served.sent_bytes <= 0.05 * len(data)


@pytest.mark.parametrize("flags", [{}, {"movflags": "faststart"}], ids=["behind", "in-front"])
def test_a_video_costs_its_index_and_a_frame(served: Served, tmp_path: Path, flags) -> None:
    data = clip(tmp_path / "a.mp4", **flags)
    assert len(data) > 10_000_000
    assert probe(Item(served.put("a.mp4", data))) == VideoShape(20, 10.0, 2.0, 1200, 900)
    assert 0 < served.sent_bytes <= 0.10 * len(data)


def test_a_known_size_is_not_asked_for_again(served: Served) -> None:
    data = png(40, 24)
    item = Item(served.put("a.png", data), held=ByteSource("1", len(data)))
    assert probe(item) == ImageShape(40, 24)


def test_what_is_decoded_is_read_whole(served: Served) -> None:
    data = png(640, 480)
    assert decode_check(Item(served.put("a.png", data)), "image") is None
    assert decode_check(Item(served.put("b.png", data[:-9000])), "image") is not None


def test_a_server_without_ranges_sends_small_files_whole(served: Served) -> None:
    served.ranges = False
    assert probe(Item(served.put("a.png", png(40, 24)))) == ImageShape(40, 24)


def test_a_server_without_ranges_does_not_fill_the_memory(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MOST_WHOLE_BYTES", 1000)
    served.ranges = False
    found = probe(Item(served.put("a.png", png(40, 24) + bytes(9000))))
    assert isinstance(found, Skipped)
    assert "knows no ranges" in found.reason


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (403, "cannot be read: the server answers 403"),
        (404, "cannot be read: the server answers 404"),
        (503, "cannot be read: the server answers 503"),
    ],
)
def test_a_refusal_is_one_skipped_item(served: Served, status: int, reason: str) -> None:
    url = served.put("a.png", png(40, 24))
    served.status = status
    assert probe(Item(url)) == Skipped(url, reason)


def test_a_server_that_says_nothing_is_left(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT_S", 0.5)
    remote._client.cache_clear()
    served.hang = threading.Event()
    assert probe(Item(f"{served.url}/a.png")) == Skipped(f"{served.url}/a.png", "no answer in time")


def test_a_host_that_is_not_there_is_one_skipped_item() -> None:
    found = probe(Item("http://127.0.0.1:9/a.png"))
    assert isinstance(found, Skipped)


def test_one_object_of_a_web_server_is_a_corpus(served: Served) -> None:
    url = served.put("a.png?size=large", png(40, 24))
    assert list(RemoteSource(url).items()) == [Item(url)]
    assert probe(Item(url)) == ImageShape(40, 24)
