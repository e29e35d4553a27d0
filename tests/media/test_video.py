"""The index of an MP4 is believed only where reading on would say the same."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import av
import pytest

from mmcalib.corpus.archives import ArchiveSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import Shape, VideoShape
from mmcalib.media import video
from mmcalib.media.container import open_container
from mmcalib.media.headers import may_be_rotated
from mmcalib.media.probe import probe
from tests.builders import expect
from tests.corpus.listed import items_of
from tests.corpus.tars import zipped
from tests.media.test_elsewhere import outcome
from tests.odd_media import clips, hiding, paced

WIDTH, HEIGHT = 64, 48

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

# The presentation time of each frame in milliseconds.
PACES: dict[str, list[int]] = {
    "one frame": [0],
    "two frames": [0, 100],
    "steady": [100 * number for number in range(24)],
    "late": [5000 + 100 * number for number in range(24)],
    "variable": [0, 100, 200, 250, 300, 950, 1000, 1100, 3000, 3010, 3020, 3600],
    "a long pause": [0, 40, 80, 120, 90_000],
}


def write(path: Path, form: str = "h264", pace: str = "steady", *, sound: bool = False) -> Path:
    codec, options, layout = FORMS[form]
    how: dict[str, Any] = {"codec": codec, "options": options, "layout": layout, "sound": sound}
    return paced(path, PACES[pace], 10, form="mp4", **how)


def shape(path: Path) -> Shape | str:
    """The clip's, or why it has none."""
    return outcome(Item(str(path)))


def the_long_way(path: Path) -> Shape | str:
    """Hide the name of the first box: only what follows says that it is an MP4."""
    data = path.read_bytes()
    assert data[4:8] == b"ftyp"
    copy = path.with_suffix(".long")
    copy.write_bytes(data[:4] + b"free" + data[8:])
    return shape(copy)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("form", FORMS)
def test_the_shape_is_the_one_that_reading_on_finds(tmp_path: Path, form: str, pace: str) -> None:
    path = write(tmp_path / "a.mp4", form, pace)
    found = expect(VideoShape, shape(path))
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
def test_a_size_in_the_index_that_is_not_the_frames_is_not_believed(tmp_path, form, sound) -> None:
    path = write(tmp_path / "a.mp4", form, sound=sound)
    data = path.read_bytes()
    size = struct.pack(">HH", WIDTH, HEIGHT)
    assert data.count(size) == 1
    path.write_bytes(data.replace(size, struct.pack(">HH", 1920, 1080)))
    found = expect(VideoShape, shape(path))
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
    assert shape(path) == the_long_way(path)


# Name and muxer options: the index behind the pixels, before them, in fragments; Matroska.
LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {
    "last": ("mp4", {}),
    "first": ("mp4", {"movflags": "faststart"}),
    "fragments": ("mp4", {"movflags": "frag_keyframe+empty_moov"}),
    "quicktime": ("mov", {}),
    "matroska": ("matroska", {}),
    "live": ("matroska", {"live": "1"}),
}

UPRIGHT = (1, 0, 0, 1)


def write_turned(path: Path, *degrees: int | None, layout: str = "last") -> Path:
    """One stream of 64×48 pixels for each of `degrees`."""
    form, options = LAYOUTS[layout]
    sizes = [(64, 48)] * len(degrees)
    return clips(path, *sizes, frames=3, form=form, options=options, turns=degrees)


def decoded_size(path: Path) -> tuple[int, int]:
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        size_of = frame.width, frame.height
        return size_of[::-1] if frame.rotation % 180 else size_of


def size_of(item: Item) -> tuple[int, int]:
    shape = expect(VideoShape, probe(item))
    return shape.width_px, shape.height_px


def asks(path: Path) -> bool:
    with path.open("rb") as file:
        return may_be_rotated(file)


def with_matrix(path: Path, box: bytes, *rows: int) -> Path:
    """The file with another matrix in the first `box`: a, b, c, d of the standard."""
    data = bytearray(path.read_bytes())
    a, b, c, d = (number << 16 for number in rows)
    at = data.index(box) + 4 + {b"mvhd": 36, b"tkhd": 40}[box]
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("degrees", [0, 90, 180, 270, 45])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_size_is_that_of_decoding(tmp_path: Path, layout: str, degrees: int) -> None:
    path = write_turned(tmp_path / "a.mp4", degrees, layout=layout)
    size = size_of(Item(str(path)))
    turned = {90: (48, 64), 180: (64, 48), 270: (48, 64)}
    assert size == decoded_size(path) == turned.get(degrees, size)
    assert asks(path) == (degrees != 0)


@pytest.mark.parametrize(
    "rows", [UPRIGHT, (0, 1, -1, 0), (-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0)]
)
@pytest.mark.parametrize("box", [b"mvhd", b"tkhd"])
def test_matrices_of_movie_and_track_count(tmp_path: Path, box: bytes, rows) -> None:
    path = with_matrix(write_turned(tmp_path / "a.mp4", None), box, *rows)
    assert size_of(Item(str(path))) == decoded_size(path)
    assert asks(path) == (rows != UPRIGHT)


@pytest.mark.parametrize("degrees", [(None, 90), (90, None), (180, 90)])
@pytest.mark.parametrize("layout", ["last", "matroska"])
def test_the_first_of_several_tracks_decides(tmp_path: Path, layout: str, degrees) -> None:
    path = write_turned(tmp_path / "a.mp4", *degrees, layout=layout)
    assert size_of(Item(str(path))) == decoded_size(path)
    assert asks(path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("degrees", [0, 90])
def test_members_of_an_archive_are_looked_at_too(tmp_path: Path, layout: str, degrees: int) -> None:
    path = write_turned(tmp_path / "a.mp4", degrees, layout=layout)
    packed = zipped(tmp_path / "a.zip", (path.name, path.read_bytes()), method=zipfile.ZIP_STORED)
    (item,) = items_of(ArchiveSource("zip", str(packed)))
    assert probe(item) == probe(Item(str(path)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\x18ftypisom",
        b"\0\0\0\x08moov",
        b"\x1aE\xdf\xa3",
        b"\x1aE\xdf\xa3\x80\x18\x53\x80\x67\xff\x1f\x43\xb6\x75\xff" + bytes(99),
        b"\x1aE\xdf\xa3\x80\x18\x53\x80\x67\xff\x16\x54\xae\x6b\x88",
        b"\x1aE\xdf\xa3" + b"\x80" * 9999,
        bytes(9999),
    ],
)
def test_what_is_not_understood_is_decoded(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    assert asks(tmp_path / "a")


def test_a_header_without_frames_is_no_video(tmp_path: Path) -> None:
    data = write_turned(tmp_path / "a.mkv", None, layout="matroska").read_bytes()
    (tmp_path / "a.mkv").write_bytes(data[: data.index(b"\x1f\x43\xb6\x75")])
    assert isinstance(probe(Item(str(tmp_path / "a.mkv"))), Skipped)


@pytest.mark.parametrize(
    ("frames", "hidden", "rate", "shown"),
    [(120, 70, 30, 49), (300, 155, 30, 145), (300, 2, 30, 298), (400, 290, 24, 109)],
)
def test_frames_behind_an_edit_list_do_not_count(tmp_path, frames, hidden, rate, shown) -> None:
    """vLLM 0.32's `get_video_metadata` (vllm/multimodal/video_decoders/opencv.py) skips them."""
    shape = expect(VideoShape, probe(Item(str(hiding(tmp_path / "a.mp4", frames, hidden, rate)))))
    assert shape.num_frames == shown
    assert shape.duration_s == pytest.approx(shown / rate, abs=2.1 / rate)
