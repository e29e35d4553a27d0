"""New in the server conformance work: pictures that end too early, and are refused."""

from __future__ import annotations

import io
from pathlib import Path

import av
import pytest
from PIL import Image

from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.domain.shapes import Encoded, Modality, VideoShape
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import cut_short, examine_whole, probe


def cut(path: str, share: float) -> str:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * share)])
    return path


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif", "a.webp", "a.tif", "a.avif"])
def test_whole_images_pass(make_image, name) -> None:
    assert decode_check(Item(make_image(name, 64, 48)), "image") is None


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_a_cut_image_has_a_header_but_does_not_decode(make_image, name) -> None:
    path = cut(make_image(name, 640, 480), 0.6)
    assert not isinstance(probe(Item(path)), Skipped)
    why = decode_check(Item(path), "image")
    assert why is not None
    assert "truncated" in why


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.ts"])
def test_whole_videos_pass(make_video, name) -> None:
    assert decode_check(Item(make_video(name)), "video") is None


def test_frames_of_too_many_pixels_are_sized_but_not_decoded(
    tmp_path: Path,
) -> None:
    """Whether a server takes them is its own limit; what decodes here is protected from them."""
    path = tmp_path / "wide.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 20_000, 9_000, "monob"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame(20_000, 9_000, "monob")))
        container.mux(stream.encode())
    cut(str(path), 0.9)
    shape = probe(Item(str(path)))
    assert isinstance(shape, VideoShape)
    assert (shape.width_px, shape.height_px) == (20_000, 9_000)
    assert decode_check(Item(str(path)), "video") is None


def test_a_cut_video_with_its_index_in_front(make_video) -> None:
    path = cut(make_video("a.mp4", frames=60, options={"movflags": "faststart"}), 0.5)
    assert not isinstance(probe(Item(path)), Skipped)
    assert decode_check(Item(path), "video") is not None


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_whole_sounds_pass(make_audio, name) -> None:
    assert decode_check(Item(make_audio(name, samples=48000)), "audio") is None


def test_a_cut_flac(make_audio) -> None:
    path = cut(make_audio("a.flac", samples=160000), 0.5)
    assert not isinstance(probe(Item(path)), Skipped)
    assert decode_check(Item(path), "audio") is not None


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
def test_text_decodes_as_nothing(tmp_path: Path, modality: Modality) -> None:
    path = tmp_path / "a.txt"
    path.write_text("words\n" * 100)
    why = decode_check(Item(str(path)), modality)
    assert why
    assert "\n" not in why


def picture_of(form: str) -> bytes:
    page = io.BytesIO()
    Image.effect_noise((300, 200), 90).convert("RGB").save(page, form)
    return page.getvalue()


def examined(data: bytes) -> bool:
    seen = examine_whole(Item("memory://a", held=ByteSource("", len(data), data=data)))
    assert isinstance(seen, Encoded), seen
    return seen.encoding.cut_short


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_picture_without_its_end_is_seen(form: str) -> None:
    whole = picture_of(form)
    assert not examined(whole)
    assert examined(whole[: len(whole) * 2 // 3])


def test_what_stands_behind_the_end_does_not_matter() -> None:
    assert not examined(picture_of("JPEG") + bytes(5000))


@pytest.mark.parametrize("form", ["BMP", "GIF", "TIFF"])
def test_of_other_formats_nothing_is_said(form: str) -> None:
    data = picture_of(form)[:-10]
    assert not cut_short(io.BytesIO(data), len(data))
