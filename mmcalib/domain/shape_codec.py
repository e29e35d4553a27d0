"""A shape as plain values: what every file, line and document that holds one is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from mmcalib.domain.shapes import SHAPES, AudioShape, ImageShape, Modality, Shape, VideoShape


def to_fields(shape: Shape) -> dict[str, int | float]:
    """Its fields by name; beside them stands its modality."""
    match shape:
        case ImageShape():
            return {"width_px": shape.width_px, "height_px": shape.height_px}
        case VideoShape():
            return {
                "num_frames": shape.num_frames,
                "fps": shape.fps,
                "duration_s": shape.duration_s,
                "width_px": shape.width_px,
                "height_px": shape.height_px,
            }
        case AudioShape():
            return {"num_samples": shape.num_samples, "sample_rate_hz": shape.sample_rate_hz}
        case _:
            assert_never(shape)


def to_tagged(shape: Shape) -> dict[str, str | int | float]:
    """One object: `{"modality": "image", "width_px": 640, "height_px": 480}`."""
    return {"modality": shape.modality, **to_fields(shape)}


def to_row(shape: Shape) -> list[str | int | float]:
    """One list: `["image", 640, 480]`."""
    return [shape.modality, *to_fields(shape).values()]


def from_row(modality: Modality, values: Iterable[Any]) -> Shape:
    """The reverse of `to_row`. Raises KeyError or TypeError for another list."""
    return SHAPES[modality](*values)
