"""The index of an MP4 is believed only where reading on would say the same."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import Shape, VideoShape
from mmcalib.media import video
from mmcalib.media.container import open_container
from mmcalib.media.probe import probe
from mmcalib.processes import own_priority

WIDTH, HEIGHT, RATE = 64, 48, Fraction(10)

# Codec, options of the codec and of the muxer.
FORMS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "h264": ("libx264", {}, {}),
    "h264 with its index in front": ("libx264", {}, {"movflags": "faststart"}),
    "h264 in fragments": ("libx264", {}, {"movflags": "frag_keyframe+empty_moov"}),
    "h264 half in fragments": ("libx264", {"g": "5"}, {"movflags": "frag_keyframe"}),
    "h264, interlaced": ("libx264", {"flags": "+ildct"}, {}),
    "hevc": ("libx265", {"x265-params": "log-level=none:bframes=0"}, {}),
    "mpeg4": ("mpeg4", {}, {}),
    "mjpeg": ("mjpeg", {}, {}),
    "vp9": ("libvpx-vp9", {}, {}),
    "av1": ("libsvtav1", {}, {}),
}
# The presentation time of each frame, in ticks of 1/100 s.
PACES: dict[str, list[int]] = {
    "one frame": [0],
    "two frames": [0, 10],
    "steady": [10 * number for number in range(24)],
    "late": [500 + 10 * number for number in range(24)],
    "variable": [0, 10, 20, 25, 30, 95, 100, 110, 300, 301, 302, 360],
    "a long pause": [0, 4, 8, 12, 9000],
}


@own_priority()
def write(path: Path, form: str = "h264", pace: str = "steady", *, sound: bool = False) -> Path:
    codec, options, layout = FORMS[form]
    with av.open(str(path), "w", format="mp4", options=layout) as container:
        # The stream that is named first has its packets first.
        heard = container.add_stream("aac", rate=16_000) if sound else None
        stream = container.add_stream(codec, rate=RATE, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = WIDTH, HEIGHT
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.time_base = Fraction(1, 100)
        container.start_encoding()
        if heard is not None:
            quiet = av.AudioFrame.from_ndarray(
                np.zeros((1, 16_000), np.float32), format="fltp", layout="mono"
            )
            quiet.sample_rate = 16_000
            container.mux(heard.encode(quiet))
            container.mux(heard.encode())
        noise = np.random.default_rng(1).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        for ticks in PACES[pace]:
            frame = av.VideoFrame.from_ndarray(np.roll(noise, ticks, axis=1), format="rgb24")
            frame.pts, frame.time_base = ticks, Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def shape(path: Path) -> Shape | Skipped:
    return probe(Item(str(path)))


def the_long_way(path: Path) -> Shape | Skipped:
    """With the name of the first box gone, nothing says that it is an MP4 but what follows."""
    data = path.read_bytes()
    assert data[4:8] == b"ftyp"
    copy = path.with_suffix(".long")
    copy.write_bytes(data[:4] + b"free" + data[8:])
    return shape(copy)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("form", FORMS)
def test_the_shape_is_the_one_that_reading_on_finds(tmp_path: Path, form: str, pace: str) -> None:
    path = write(tmp_path / "a.mp4", form, pace)
    found = shape(path)
    assert isinstance(found, VideoShape)
    assert (found.width_px, found.height_px) == (WIDTH, HEIGHT)
    # OpenCV, too, believes the count of the frames that stand before the fragments.
    assert found.num_frames == len(PACES[pace]) or form == "h264 half in fragments"
    assert found == the_long_way(path)


@pytest.mark.parametrize("form", FORMS)
def test_sound_in_front_changes_nothing(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "a.mp4", form, sound=True)
    assert shape(path) == the_long_way(path)


@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize("form", ["h264", "hevc", "mpeg4", "vp9"])
def test_a_size_in_the_index_that_is_not_the_frames_is_not_believed(
    tmp_path: Path, form: str, sound: bool
) -> None:
    path = write(tmp_path / "a.mp4", form, sound=sound)
    data = path.read_bytes()
    size = struct.pack(">HH", WIDTH, HEIGHT)
    assert data.count(size) == 1
    path.write_bytes(data.replace(size, struct.pack(">HH", 1920, 1080)))
    found = shape(path)
    assert isinstance(found, VideoShape)
    assert (found.width_px, found.height_px) == (WIDTH, HEIGHT)


@pytest.mark.parametrize("form", ["h264", "hevc", "mjpeg", "mpeg4"])
def test_the_index_is_enough(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.mp4", form)
    opened: list[bool] = []
    whole = open_container

    def noted(medium, **how):
        opened.append(how.get("whole", True))
        return whole(medium, **how)

    monkeypatch.setattr(video, "open_container", noted)
    assert isinstance(shape(path), VideoShape)
    assert opened == [False]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_what_is_cut_off_is_as_the_long_way_has_it(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "a.mp4", "h264 with its index in front", sound=True)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    found, long = shape(path), the_long_way(path)
    if isinstance(found, Skipped):
        assert isinstance(long, Skipped)
        assert found.reason == long.reason
    else:
        assert found == long
