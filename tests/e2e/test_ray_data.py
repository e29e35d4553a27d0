"""The snippet of docs/recipes/deploy.md in Ray Data LLM itself: what was calibrated for is
processed, and what is beyond the limits is not. Ray takes some releases of vLLM only:
MMCALIB_RAY_PYTHON names the interpreter of an environment with one of them, and without it this
one is tried.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from mmcalib import Calibration
from tests.conftest import ROOT
from tests.e2e.media import clip, photo

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


def request(name: str, *items: tuple[str, str]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": kind, kind: {"url": url}} for kind, url in items]
    content = [{"type": "text", "text": "Describe."}, *parts]
    return {"custom_id": name, "messages": [{"role": "user", "content": content}]}


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


def test_what_is_beyond_a_limit_is_an_error_and_the_rest_is_processed(
    python: Path, tmp_path: Path
) -> None:
    """So the test above can fail."""
    corpus = tmp_path / "corpus"
    for seed, name in enumerate(("a.jpg", "b.jpg")):
        photo(corpus / name, 640, 480, seed)
    clip(corpus / "c.mp4", 320, 240, frames=20)
    first, second = ("image_url", "a.jpg"), ("image_url", "b.jpg")
    asked = [
        request("one", first),
        request("two", first, second),
        request("clip", ("video_url", "c.mp4")),
    ]
    requests = corpus / ray_data.REQUESTS
    requests.write_text("".join(json.dumps(one) + "\n" for one in asked))
    module = ray_data.calibrated(python, corpus, tmp_path / "out")
    found = ray_data.processed(python, module, requests, tmp_path, **ray_data.TOO_LOW)
    assert {row.custom_id: row.answered for row in found.rows} == {
        "one": True,
        "two": False,
        "clip": True,
    }
    (error,) = found.errors
    assert "At most 1 image(s) may be provided" in error
    assert not found.whole
