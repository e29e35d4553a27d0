"""Blank files have the shape that was asked for, and no two are equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcalib.domain.items import Item
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.media.blank import write_blank
from mmcalib.media.probe import probe


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
        assert isinstance(found, VideoShape)
        assert (found.num_frames, found.width_px, found.height_px) == (
            shape.num_frames,
            shape.width_px,
            shape.height_px,
        )
        assert found.fps == pytest.approx(shape.fps)
        assert found.duration_s == pytest.approx(shape.duration_s, abs=0.01)
    else:
        assert found == shape
    assert one.read_bytes() != other.read_bytes()
