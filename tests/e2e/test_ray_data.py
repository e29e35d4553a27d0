"""Run the snippet of docs/how-to/deploy.md in Ray Data LLM, by MMCALIB_RAY_PYTHON if set."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from mmcalib import Calibration
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import ray_data_llm as ray_data

pytestmark = [pytest.mark.engine, pytest.mark.long]

SAMPLE = ROOT / "sample"


@pytest.fixture(scope="module")
def python() -> Path:
    found = Path(os.environ.get("MMCALIB_RAY_PYTHON", sys.executable))
    if why := ray_data.lacking(found):
        pytest.skip(f"no Ray Data LLM under {found}: {why}")
    return found


@pytest.mark.skipif(not SAMPLE.exists(), reason="needs the sample corpus: make demo")
def test_the_sample_corpus_is_processed_as_it_was_counted(python: Path, tmp_path: Path) -> None:
    module = ray_data.calibrated(python, SAMPLE, tmp_path / "out")
    requests = SAMPLE / ray_data.REQUESTS
    found = ray_data.processed(python, module, requests, tmp_path)
    assert found.whole, found.errors
    calibration = Calibration.load(tmp_path / "out" / "calibration.json")
    assert sum(found.items.values()) == calibration.corpus.items
    taken = {row.custom_id: row.prompt_tokens for row in found.rows}
    for line in requests.read_text("utf-8").splitlines():
        asked = ray_data.located(json.loads(line), SAMPLE)
        answer = calibration.admits(asked, allowed_local_media_path=SAMPLE.resolve())
        said = r"(\d+) tokens of media \+ (at most )?(\d+) of text"
        counted = re.fullmatch(said, answer.reason)
        assert counted is not None, answer.reason
        media, bounded, text = counted.groups()
        # Ray has vLLM join the parts of a message by line ends, which a server does not.
        joined = sum(len(message["content"]) - 1 for message in asked["messages"])
        if bounded:
            assert int(media) < taken[asked["custom_id"]] <= int(media) + int(text) + joined
        else:
            assert taken[asked["custom_id"]] == int(media) + int(text) + joined
