from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.workflows.scan import scan
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import chat_requests
import empty_media
import scale


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_corpus_has_as_many_items_and_sizes_as_it_should(
    tmp_path: Path, modality: Modality
) -> None:
    empty_media.make(tmp_path / "few", 12, 5, modality)
    empty_media.make(tmp_path / "again", 12, 5, modality)
    few, again = (
        [(one.shape, one.count) for one in scan([tmp_path / name]).census.shapes(modality)]
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
    assert scale._grid("") == []


def test_requests_are_the_same_for_the_same_number_and_can_all_be_used(
    tmp_path: Path,
) -> None:
    log, again = (chat_requests.make_requests(tmp_path / name, 500, 30) for name in "ab")
    assert log.read_bytes() == again.read_bytes()
    assert 2_500 < log.stat().st_size / 500 < 3_400
    found = scan([], [log])
    corpus = found.corpus
    assert (corpus.prompts, corpus.files, found.skipped) == (500, 30, ())
    assert 2.4 < corpus.items / 500 < 3.4
    assert any(
        "\u4eac" in json.loads(line)["messages"][1]["content"][-1]["text"] for line in log.open()
    )


def test_a_log_of_requests_has_its_row() -> None:
    row = scale.RequestsRow(1_000_000, 2_940_000_000, 140.2, 135.7, 303_000_000)
    assert list(scale._logs([row]))[-2] == "| 1,000,000 | 2.9 | 140 | 136 | 303 |"
