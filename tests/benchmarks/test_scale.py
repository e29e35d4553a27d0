from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.workflows.scan import scan
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import empty_media
import scale


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_corpus_has_as_many_items_and_sizes_as_it_should(
    tmp_path: Path, modality: Modality
) -> None:
    empty_media.make(tmp_path / "few", 12, 5, modality)
    empty_media.make(tmp_path / "again", 12, 5, modality)
    few, again = (
        [(one.shape, one.count) for one in scan([tmp_path / name]).survey.census.shapes(modality)]
        for name in ("few", "again")
    )
    assert sorted(count for _, count in few) == [2, 2, 2, 3, 3]
    assert few == again


def test_the_longest_step_is_read_from_what_was_said() -> None:
    said = """finding the model: 0.8 s
reading the corpus: 10,000, 16,310/s, 0.6 s
measuring costs: 2,078/10,012 21%, 69/s, about 115 s left
measuring costs: 10,012, 49/s, 204.3 s
opening the model in vLLM: 64.2 s
"""
    assert scale._longest(said) == "measuring costs, 204 s"
    assert scale._longest("") == "none, 0 s"


def test_a_grid_is_pairs() -> None:
    assert scale._grid("2000x1,10x5") == [(2000, 1), (10, 5)]
