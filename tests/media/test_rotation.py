"""A look at the header finds every rotation that decoding finds, and spares most decoding."""

from __future__ import annotations

import struct
import zipfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from mmcalib.corpus.archives import ArchiveSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import VideoShape
from mmcalib.media.probe import probe
from mmcalib.media.video import may_be_turned

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


def write(path: Path, *degrees: int | None, layout: str = "last") -> Path:
    """One stream of 64×48 pixels for each of `degrees`."""
    form, options = LAYOUTS[layout]
    with av.open(str(path), "w", format=form, options=options) as container:
        streams = []
        for turn in degrees:
            stream = container.add_stream("mpeg4", rate=Fraction(10))
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            if turn is not None:
                stream.set_display_rotation(turn)
            streams.append(stream)
        container.start_encoding()
        for number in range(3):
            for stream in streams:
                grey = np.full((48, 64, 3), number, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        for stream in streams:
            container.mux(stream.encode())
    return path


def decoded_size(path: Path) -> tuple[int, int]:
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        size = frame.width, frame.height
        return size[::-1] if frame.rotation % 180 else size


def size(item: Item) -> tuple[int, int]:
    shape = probe(item)
    assert isinstance(shape, VideoShape)
    return shape.width_px, shape.height_px


def asks(path: Path) -> bool:
    with path.open("rb") as file:
        return may_be_turned(file)


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
    path = write(tmp_path / "a.mp4", degrees, layout=layout)
    assert size(Item(str(path))) == decoded_size(path)
    assert asks(path) == (degrees != 0)


@pytest.mark.parametrize(
    "rows", [UPRIGHT, (0, 1, -1, 0), (-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0)]
)
@pytest.mark.parametrize("box", [b"mvhd", b"tkhd"])
def test_matrices_of_movie_and_track_count(
    tmp_path: Path, box: bytes, rows: tuple[int, ...]
) -> None:
    path = with_matrix(write(tmp_path / "a.mp4", None), box, *rows)
    assert size(Item(str(path))) == decoded_size(path)
    assert asks(path) == (rows != UPRIGHT)


@pytest.mark.parametrize("degrees", [(None, 90), (90, None), (180, 90)])
@pytest.mark.parametrize("layout", ["last", "matroska"])
def test_the_first_of_several_tracks_decides(
    tmp_path: Path, layout: str, degrees: tuple[int | None, ...]
) -> None:
    path = write(tmp_path / "a.mp4", *degrees, layout=layout)
    assert size(Item(str(path))) == decoded_size(path)
    assert asks(path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("degrees", [0, 90])
def test_members_of_an_archive_are_looked_at_too(tmp_path: Path, layout: str, degrees: int) -> None:
    path = write(tmp_path / "a.mp4", degrees, layout=layout)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, path.name)
    (item,) = ArchiveSource("zip", str(tmp_path / "a.zip")).items()
    assert isinstance(item, Item)
    assert probe(item) == probe(Item(str(path)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\x18ftypisom",
        b"\0\0\0\x08moov",
        b"\0\0\0\1moov",
        b"\0\0\0\x10moov\0\0\0\x08trak",
        b"\x1aE\xdf\xa3",
        b"\x1aE\xdf\xa3\x80\x18\x53\x80\x67\xff",
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
    data = write(tmp_path / "a.mkv", None, layout="matroska").read_bytes()
    (tmp_path / "a.mkv").write_bytes(data[: data.rindex(b"\x1f\x43\xb6\x75")])
    assert isinstance(probe(Item(str(tmp_path / "a.mkv"))), Skipped)
