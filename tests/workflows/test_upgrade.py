"""What releases are compared by, and how a configuration is read that one of them does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from mmcalib.domain.shapes import ImageShape
from mmcalib.errors import CorpusError, UsageError
from mmcalib.progress import Silent
from mmcalib.workflows.upgrade.compare import compare_releases
from mmcalib.workflows.upgrade.shapes import shapes_of, taken


def test_usual_sizes_are_a_handful_of_each_modality() -> None:
    shapes = shapes_of((), Silent())
    counts = [len(taken(shapes, [modality])) for modality in ("image", "video", "audio")]
    assert min(counts) >= 3
    assert ImageShape(4032, 3024) in shapes
    assert len(set(shapes)) == len(shapes) == sum(counts)


def test_sizes_of_media_are_their_extremes_once_each(tmp_path: Path) -> None:
    for number, size in enumerate([(640, 480), (640, 480), (64, 480), (2000, 100)]):
        Image.new("RGB", size).save(tmp_path / f"{number}.png")
    shapes = shapes_of([tmp_path], Silent())
    assert set(shapes) == {ImageShape(640, 480), ImageShape(64, 480), ImageShape(2000, 100)}
    assert len(shapes) == 3
    with pytest.raises(CorpusError, match="the model takes audio"):
        taken(shapes, ["audio"])


@pytest.mark.parametrize("count", [0, 3])
def test_two_installations_are_compared(count: int) -> None:
    with pytest.raises(UsageError, match="two installations"):
        compare_releases("Qwen/Qwen2.5-VL-3B-Instruct", ["p"] * count, gpu="L4")
