"""Image/video/audio shape, its encoding, its text forms.

A shape is what decides an item's cost: pixels, frames and time, samples; `modality` tells them
apart.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Literal

from mmcalib.text import MIB

# libsndfile says SF_COUNT_MAX (2**63 - 1) where a header leaves the length open.
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


def weight(shape: Shape) -> float:
    """What is decoded of it: pixels, frames × pixels, or samples."""
    match shape:
        case VideoShape():
            return shape.num_frames * shape.width_px * shape.height_px
        case AudioShape():
            return shape.num_samples
        case ImageShape():
            return shape.width_px * shape.height_px


def flaw(shape: Shape) -> str:
    """Why no item has this shape, such as one of a table that lacks a size; empty where one can.
    Shapes do not ask it themselves: there are millions of them.
    """
    for name in (field.name for field in fields(shape)):
        value = getattr(shape, name)
        if not isinstance(value, Real) or value <= 0 or not value < math.inf:
            return f"{name} of {value!r}: sizes are numbers above 0"
    return ""


def to_row(shape: Shape) -> list[str | int | float]:
    """One list: `["image", 640, 480]`."""
    return [shape.modality, *(getattr(shape, name) for name in shape.__slots__)]


def from_row(modality: Modality, values: Iterable[Any]) -> Shape:
    """The reverse of `to_row`. Raises KeyError or TypeError for another list."""
    return SHAPES[modality](*values)


# `cut_short`: the end of the file is missing, where anybody looked. Of sound: libsndfile cannot
# seek in it (`unseekable`), or refuses it with an error after which vLLM does not try FFmpeg
# (`unreadable`), or its tags are no UTF-8 (`tags`).
Fault = Literal["", "cut_short", "unseekable", "unreadable", "tags"]


@dataclass(frozen=True, slots=True, order=True)
class Encoding:
    """How a file holds its shape; fields that do not bear on its modality keep their defaults.

    `file_mib` is rounded up: vLLM's limits on files are whole MiB. `codec` is FFmpeg's name of what
    the video stream is in. Of sound, `channels`, and `sample_format` as FFmpeg decodes it, empty
    where libsndfile does, to float32. `promised_frames` is what the header of a video says that
    has fewer, 0 where it has them all. `sent_frames`: a client sent the frames themselves.
    `fetched`: the server has it from a URL of the web. `transport_stream`: an MPEG-TS, such as the
    segments of HLS. `claimed_samples` is the length by which the server's loader judges a sound
    that has another one, 0 where it judges by the real one. `fault` is what else it stumbles on.
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
"""Of a small picture: there is nothing to say of it, and most items are such."""


_PLAIN = asdict(PLAIN)


def told(encoding: Encoding) -> dict[str, int | str]:
    """What is not `PLAIN` in it, by name: all that is written of one."""
    return {n: value for n, plain in _PLAIN.items() if (value := getattr(encoding, n)) != plain}


def hears_alone(modalities: Container[Modality]) -> bool:
    """Whether a model takes sound and no video: of a recording with pictures it gets the sound."""
    return "audio" in modalities and "video" not in modalities


def mib(size_bytes: int) -> int:
    """Whole MiB that hold so many bytes, at least one."""
    return max(1, -(-size_bytes // MIB))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A shape, and how a file holds it."""

    shape: Shape
    encoding: Encoding = PLAIN

    @property
    def modality(self) -> Modality:
        return self.shape.modality


Given = Shape | Encoded
"""An item to be judged: by its shape alone, or by its file."""


def encoded(given: Given) -> Encoded:
    """A bare shape is one that some ordinary file holds."""
    return given if isinstance(given, Encoded) else Encoded(given)
