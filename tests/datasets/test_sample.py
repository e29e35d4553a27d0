"""The sample corpus is read as its recipe describes each file."""

from collections import Counter
from pathlib import Path

import pytest

from mmcalib.census.counter import Prober, count_corpus
from mmcalib.corpus.folder import FolderSource
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import probe
from tests.census.looking import Inline
from tests.datasets.test_recipe import FILES


@pytest.mark.parametrize("truth", FILES, ids=lambda truth: truth["target"])
def test_a_file_has_the_shape_of_the_recipe_and_no_damage(sample: Path, truth) -> None:
    path = str(sample / truth["target"])
    shape = probe(Item(path, truth["kind"]))
    match shape:
        case ImageShape():
            turned = any(f"orientation-{n}." in path for n in (5, 6, 7, 8))
            sides = (shape.width_px, shape.height_px)[:: -1 if turned else 1]
            assert sides == (truth["width_px"], truth["height_px"])
        case VideoShape():
            assert (shape.width_px, shape.height_px) == (truth["width_px"], truth["height_px"])
            # Ogg counts no frames: they follow from its length.
            assert abs(shape.num_frames - truth["num_frames"]) <= path.endswith(".ogv")
            assert shape.fps == pytest.approx(truth["fps"], rel=1e-4)
            assert shape.duration_s == pytest.approx(truth["duration_s"], abs=0.04)
        case AudioShape():
            assert shape.sample_rate_hz == truth["sample_rate_hz"]
            assert shape.duration_s == pytest.approx(truth["duration_s"], abs=0.04)
        case _:
            pytest.fail(str(shape))
    assert decode_check(Item(path), shape.modality) is None


def test_the_whole_corpus(sample: Path) -> None:
    folders = [FolderSource(sample / kind) for kind in ("image", "video", "audio")]
    taken = count_corpus(folders, Prober(Inline(probe)))
    assert taken.skipped == []
    found = {modality: taken.census.items(modality) for modality in taken.census.modalities()}
    assert found == Counter(truth["kind"] for truth in FILES)
