import io
import os
import warnings
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.media.blank import write_blank
from mmcalib.media.container import open_container
from mmcalib.media.decode import decode_check
from mmcalib.media.failure import Unreadable, media_errors, reading_by_pillow
from mmcalib.media.image import ignore_warnings
from mmcalib.media.probe import probe
from tests.builders import expect
from tests.odd_media import clips, heard, sound_frame, steady, titled


def reason(path: str | Path) -> str:
    skipped = expect(Skipped, probe(Item(str(path))))
    assert skipped.path == str(path)
    assert 0 < len(skipped.reason) <= 200
    assert "\n" not in skipped.reason
    return skipped.reason


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif", "a.avif"])
def test_image_size_is_the_one_after_exif_rotation(make_image, name, orientation) -> None:
    path = make_image(name, 40, 24, orientation)
    with Image.open(path) as image:
        truth = ImageOps.exif_transpose(image).size
    assert truth == ((24, 40) if orientation > 4 else (40, 24))
    assert probe(Item(path)) == ImageShape(*truth)


@pytest.mark.parametrize(("width", "height"), [(40, 24), (1500, 1000)])
def test_png_with_exif_behind_the_pixels(make_image, width, height) -> None:
    path = Path(make_image("late.png", width, height, 6, compress_level=0))
    data = path.read_bytes()
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4], "big")
    last = data.index(b"IEND") - 4
    path.write_bytes(data[:start] + data[end:last] + data[start:end] + data[last:])
    assert probe(Item(str(path))) == ImageShape(height, width)


def test_tiff_orientation_from_xmp_counts(tmp_path: Path) -> None:
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[700] = b'<x tiff:Orientation="6"/>'
    Image.new("L", (40, 24)).save(tmp_path / "a.tif", tiffinfo=tags)
    assert probe(Item(str(tmp_path / "a.tif"))) == ImageShape(24, 40)


def test_damaged_exif_leaves_the_image_as_stored(make_image) -> None:
    path = Path(make_image("a.jpg", 40, 24, 6))
    data = path.read_bytes()
    tiff = data.index(b"Exif\0\0") + 6
    path.write_bytes(data[:tiff] + b"\xff" * 8 + data[tiff + 8 :])
    assert probe(Item(str(path))) == ImageShape(40, 24)


def test_animated_image_is_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("P", (30, 20), color) for color in (1, 2, 3)]
    for name in ("a.gif", "a.webp", "a.png"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert probe(Item(str(tmp_path / name))) == ImageShape(30, 20)


def test_large_image_is_probed_without_a_warning(tmp_path: Path) -> None:
    Image.new("1", (12000, 10000)).save(tmp_path / "large.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probe(Item(str(tmp_path / "large.png"))) == ImageShape(12000, 10000)


def test_readers_leave_the_filters_of_warnings_as_they_were() -> None:
    """Threads that read at the same time once silenced a program for good."""
    before = list(warnings.filters)
    readers = ignore_warnings(), ignore_warnings()
    for one in readers:
        one.__enter__()
    for one in readers:
        one.__exit__(None, None, None)
    assert list(warnings.filters) == before


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.mov", "a.ts"])
def test_a_video_is_measured_and_decodes(tmp_path: Path, name: str) -> None:
    item = Item(str(clips(tmp_path / name, (64, 48), frames=30)))
    shape = expect(VideoShape, probe(item))
    assert (shape.num_frames, shape.width_px, shape.height_px) == (30, 64, 48)
    assert shape.fps == pytest.approx(10)
    assert shape.duration_s == pytest.approx(3, abs=0.11)
    assert decode_check(item, "video") is None


def test_a_broadcast_clip_is_told_by_its_content(tmp_path: Path) -> None:
    path = steady(tmp_path / "a", 12, form="mxf")
    assert expect(VideoShape, probe(Item(str(path)))).num_frames == 12


def test_video_without_counts_in_its_header_is_counted(tmp_path: Path) -> None:
    made = tmp_path / "live.webm"
    path = str(clips(made, (64, 48), frames=30, codec="libvpx", options={"live": "1"}))
    with av.open(path) as container:
        assert not container.streams.video[0].frames
        assert not container.duration
    shape = expect(VideoShape, probe(Item(path)))
    assert shape.num_frames == 30
    assert shape.duration_s == pytest.approx(3, abs=0.05)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.aiff", "a.mp3", "a.voc"])
def test_a_sound_is_measured_per_channel_and_decodes(make_audio, name) -> None:
    item = Item(make_audio(name, samples=48000, rate=16000, channels=2))
    assert probe(item) == AudioShape(48000, 16000)
    assert decode_check(item, "audio") is None


@pytest.mark.parametrize(("name", "form"), [("a.m4a", "mp4"), ("a.mka", "matroska"), ("a", "adts")])
def test_audio_that_only_ffmpeg_reads(tmp_path: Path, name: str, form: str) -> None:
    """Its bit rate at the start says nothing about the whole."""
    shape = expect(AudioShape, probe(Item(str(heard(tmp_path / name, "aac", form, 4)))))
    assert shape.sample_rate_hz == 16000
    assert shape.duration_s == pytest.approx(4, abs=0.15)


@pytest.mark.parametrize("seconds", [1.024, 2.12, 4.0001])
def test_aac_in_mp4_has_the_samples_that_decode(tmp_path: Path, seconds: float) -> None:
    path = str(heard(tmp_path / "a.m4a", "aac", "mp4", seconds))
    with av.open(path) as container:
        decoded = sum(frame.samples for frame in container.decode(audio=0))
    assert probe(Item(path)) == AudioShape(decoded, 16_000)


def test_cover_art_is_not_video(make_image, tmp_path: Path) -> None:
    path = str(tmp_path / "a.m4a")
    with av.open(make_image("c.jpg", 40, 24)) as cover, av.open(path, "w", format="mp4") as file:
        stream = file.add_stream("aac", rate=16000, layout="mono")
        art = file.add_stream_from_template(cover.streams.video[0])
        art.disposition = av.stream.Disposition.attached_pic
        packet = next(cover.demux())
        packet.stream = art
        file.mux(packet)
        file.mux(stream.encode(sound_frame(np.zeros((1, 16000), np.float32), 16000)))
        file.mux(stream.encode())
    with av.open(path) as container:
        assert container.streams.video
    assert expect(AudioShape, probe(Item(path))).duration_s == pytest.approx(1, abs=0.15)


def test_mp3_whose_header_claims_years(make_audio) -> None:
    path = Path(make_audio("a.mp3", samples=16000))
    data = bytearray(path.read_bytes())
    frames = max(data.find(b"Xing"), data.find(b"Info")) + 8
    data[frames : frames + 4] = b"\x20\0\0\0"
    path.write_bytes(data)
    assert expect(AudioShape, probe(Item(str(path)))).duration_s == pytest.approx(1, abs=0.2)
    assert decode_check(Item(str(path)), "audio") is None


def test_declared_modality_must_be_the_real_one(tmp_path: Path, make_image) -> None:
    video, image = str(clips(tmp_path / "a.mp4", (64, 48))), make_image("a.jpg", 9, 8)
    assert probe(Item(video, "image")) == Skipped(video, "declared as image, but is video")
    assert probe(Item(image, "audio")) == Skipped(image, "declared as audio, but is image")
    assert probe(Item(image, "image")) == ImageShape(9, 8)


def test_what_is_not_media(tmp_path: Path) -> None:
    (tmp_path / "c.mp4").write_bytes(bytes(range(256)) * 40)
    os.mkfifo(tmp_path / "d.jpg")
    (tmp_path / "e.jpg").symlink_to("nowhere")
    assert reason(tmp_path / "c.mp4") == "not an image, video or audio file"
    assert reason(tmp_path / "d.jpg") == "not a regular file"
    assert reason(tmp_path / "e.jpg") == "no such file"
    assert reason(tmp_path) == "not a regular file"
    assert "embedded null" in reason("/nul\0byte")


@pytest.mark.parametrize(
    "name", ["a.jpg", "a.png", "a.gif", "a.webp", "a.tif", "a.avif", "a.bmp", "a.jp2"]
)
def test_an_image_cut_anywhere_is_read_right_or_skipped(make_image, name) -> None:
    path = Path(make_image(name, 40, 24))
    data = path.read_bytes()
    for length in {*range(0, min(len(data), 200), 7), len(data) // 2, len(data) - 1}:
        path.write_bytes(data[:length])
        shape = probe(Item(str(path)))
        assert isinstance(shape, Skipped) or shape == ImageShape(40, 24)
    path.write_bytes(data[:9])
    reason(path)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.wav", "a.flac", "a.mp3", "a.ogg"])
def test_sound_and_video_cut_anywhere_are_a_value(tmp_path: Path, make_audio, name: str) -> None:
    path = tmp_path / name
    if path.suffix in (".mp4", ".mkv", ".avi"):
        clips(path, (64, 48), frames=30)
    else:
        make_audio(name)
    data = path.read_bytes()
    for percent in (1, 5, 20, 50, 80, 99):
        path.write_bytes(data[: len(data) * percent // 100])
        assert probe(Item(str(path)))
    path.write_bytes(data[:12])
    reason(path)


@pytest.mark.parametrize(
    "shape",
    [
        ImageShape(57, 31),
        VideoShape(12, 2.0, 6.0, 64, 48),
        VideoShape(30, 30000 / 1001, 1.001, 64, 48),
        AudioShape(1234, 16000),
    ],
)
def test_a_blank_is_probed_as_what_it_was_to_be(shape: Shape, tmp_path: Path) -> None:
    one, other = (write_blank(shape, number, tmp_path) for number in (0, 1))
    found = probe(Item(str(one)))
    if isinstance(shape, VideoShape):
        clip = expect(VideoShape, found)
        assert clip.fps == pytest.approx(shape.fps)
        assert clip.duration_s == pytest.approx(shape.duration_s, abs=0.01)
        assert replace(clip, fps=shape.fps, duration_s=shape.duration_s) == shape
    else:
        assert found == shape
    assert one.read_bytes() != other.read_bytes()


def test_what_pillow_raises_on_bytes_is_damage() -> None:
    with pytest.raises(Unreadable, match="damaged: TypeError"), reading_by_pillow():
        ImageFile.Parser().feed("no bytes")  # type: ignore[arg-type]


def test_a_wrong_call_of_ours_is_a_bug() -> None:
    with pytest.raises(TypeError, match="no_such"), reading_by_pillow():
        Image.open(io.BytesIO(), no_such=True)  # type: ignore[call-arg]


def test_no_bug_counts_as_damage() -> None:
    assert not {TypeError, AttributeError, ImportError, NameError} & set(media_errors())


def test_metadata_that_is_no_utf_8_is_no_damage(tmp_path: Path) -> None:
    path = clips(tmp_path / "named.mp4", (64, 48))
    marked = titled(path, tmp_path / "marked.mkv", b"\xff\xfe\xe9TLE-TITLE")
    with open_container(str(marked)) as container:
        assert "TLE" in container.metadata["title"]
    assert probe(Item(str(marked))) == probe(Item(str(path)))
