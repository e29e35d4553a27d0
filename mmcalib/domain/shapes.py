"""A shape is what decides an item's cost: pixels, frames and time, samples; `modality` tells them
apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar, Literal

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
