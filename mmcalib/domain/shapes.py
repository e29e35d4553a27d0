"""Shapes of images, videos and audio, and how a file encodes them.

A shape is what decides an item's cost: pixels, frames and time, or samples.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar, Literal

from mmcalib.text import MIB

# libsndfile reports SF_COUNT_MAX (2**63 - 1) if a header leaves the length open.
OPEN_LENGTH_SAMPLES = 1 << 62

Modality = Literal["image", "video", "audio"]
MODALITIES: tuple[Modality, ...] = ("image", "video", "audio")


@dataclass(frozen=True, slots=True, order=True)
class ImageShape:
    """Width and height in pixels as a viewer shows them, EXIF rotation applied."""

    modality: ClassVar[Literal["image"]] = "image"
    width_px: int
    height_px: int

    def __str__(self) -> str:
        return f"{self.width_px}×{self.height_px}"


@dataclass(frozen=True, slots=True, order=True)
class VideoShape:
    """The video stream as stored: all its frames, frames per second, seconds, pixels."""

    modality: ClassVar[Literal["video"]] = "video"
    num_frames: int
    fps: float
    duration_s: float
    width_px: int
    height_px: int

    def __str__(self) -> str:
        frames = f"{self.num_frames} frames, {self.duration_s:.1f} s"
        return f"{self.width_px}×{self.height_px}, {frames}"


@dataclass(frozen=True, slots=True, order=True)
class AudioShape:
    """Samples per channel at the file's own rate."""

    modality: ClassVar[Literal["audio"]] = "audio"
    num_samples: int
    sample_rate_hz: int

    @property
    def duration_s(self) -> float:
        return self.num_samples / self.sample_rate_hz

    def __str__(self) -> str:
        return f"{self.duration_s:.2f} s at {self.sample_rate_hz / 1000:g} kHz"


Shape = ImageShape | VideoShape | AudioShape

SHAPES: Mapping[Modality, type[Shape]] = {
    "image": ImageShape,
    "video": VideoShape,
    "audio": AudioShape,
}


def scaled(shape: Shape, by: float) -> Shape:
    """Return a copy with scaled sides; a sound, with a scaled length."""
    if isinstance(shape, AudioShape):
        return replace(shape, num_samples=max(1, round(shape.num_samples * by)))
    width, height = (max(1, round(side * by)) for side in (shape.width_px, shape.height_px))
    return replace(shape, width_px=width, height_px=height)


def weight(shape: Shape) -> float:
    """Amount to decode: pixels, frames × pixels, or samples."""
    match shape:
        case VideoShape():
            return shape.num_frames * shape.width_px * shape.height_px
        case AudioShape():
            return shape.num_samples
        case ImageShape():
            return shape.width_px * shape.height_px


def invalid_reason(shape: Shape) -> str:
    """Return why no item can have this shape, or "". Not in the constructor: too slow."""
    for name in (field.name for field in fields(shape)):
        value = getattr(shape, name)
        if not isinstance(value, Real) or value <= 0 or not value < math.inf:
            return f"{name} of {value!r}: sizes are numbers above 0"
    return ""


def to_row(shape: Shape) -> list[str | int | float]:
    """Convert to one list: `["image", 640, 480]`."""
    return [shape.modality, *(getattr(shape, name) for name in shape.__slots__)]


def from_row(modality: Modality, values: Iterable[Any]) -> Shape:
    """Reverse `to_row`. Raises KeyError or TypeError for another list."""
    return SHAPES[modality](*values)


# `cut_short`: the end of the file is missing (if anyone checked). For audio: libsndfile cannot
# seek in it (`unseekable`), or fails with an error after which vLLM does not try FFmpeg
# (`unreadable`), or its tags are not UTF-8 (`tags`).
Fault = Literal["", "cut_short", "unseekable", "unreadable", "tags"]


@dataclass(frozen=True, slots=True, order=True)
class Encoding:
    """How a file encodes its shape; fields of other modalities keep their defaults.

    `file_mib` is rounded up: vLLM limits files in whole MiB. `codec` is FFmpeg's name of the
    video codec. For audio: `channels`, and `sample_format` as FFmpeg decodes it, empty if
    libsndfile decodes it to float32. `promised_frames` is the header's frame count of a video that
    has fewer frames, else 0. `sent_frames`: a client sent the frames themselves. `fetched`: the
    server downloads it from a URL. `transport_stream`: an MPEG-TS, such as the segments of HLS.
    `claimed_samples` is the length that the server's loader assumes for audio of another length,
    0 if it uses the real one. `fault` is any other problem for that loader.
    """

    file_mib: int = 1
    codec: str = ""
    channels: int = 0
    sample_format: str = ""
    promised_frames: int = 0
    unpromised: bool = False
    lone_frame: bool = False
    sent_frames: bool = False
    fetched: bool = False
    transport_stream: bool = False
    claimed_samples: int = 0
    fault: Fault = ""


PLAIN = Encoding()
"""Encoding of a small image without anything special: true of most items."""

_PLAIN = asdict(PLAIN)


def non_default_fields(encoding: Encoding) -> dict[str, int | str]:
    """Return the fields unlike `PLAIN`, by name: only these are written."""
    return {n: value for n, plain in _PLAIN.items() if (value := getattr(encoding, n)) != plain}


def takes_video_as_audio(modalities: Container[Modality]) -> bool:
    """True if the model takes audio but not video: it hears the sound of a recording."""
    return "audio" in modalities and "video" not in modalities


def ceil_mib(size_bytes: int) -> int:
    """Whole MiB that contain `size_bytes`, at least one."""
    return max(1, -(-size_bytes // MIB))


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """A shape as a file encodes it."""

    shape: Shape
    encoding: Encoding = PLAIN

    @property
    def modality(self) -> Modality:
        return self.shape.modality


ItemLike = Shape | EncodedItem
"""An item to check: its shape alone, or as its file encodes it."""


def as_encoded_item(item: ItemLike) -> EncodedItem:
    """Treat a bare shape as an ordinary file."""
    return item if isinstance(item, EncodedItem) else EncodedItem(item)
