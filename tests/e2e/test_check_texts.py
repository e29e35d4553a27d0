"""Long texts, calibrated with vLLM and checked without it."""

from pathlib import Path
from typing import Any

import pytest

import mmcalib as library
from tests.builders import some
from tests.conftest import ROOT
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import photo
from tests.engine.checkpoints import speaking
from tests.engine.conftest import folder_of
from tests.engine.test_texts import served

pytestmark = [pytest.mark.engine, pytest.mark.slow]
CONTEXT = 4096
PROSE = (ROOT / "docs" / "explain" / "how-it-works.md").read_text()


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory, engine_cache: Path) -> Path:
    """A folder with a checkpoint of words, a photo and a calibration."""
    folder = tmp_path_factory.mktemp("texts")
    speaking(folder_of(QWEN, engine_cache), folder / "model")
    photo(folder / "photo.jpg", 640, 480)
    mmcalib(
        engine_cache,
        *("run", "--model", folder / "model", "--data", folder / "photo.jpg"),
        *("--out", folder / "out", "--validate", "none", "--quiet"),
        *("--max-model-len", str(CONTEXT)),
    )
    return folder


def request(folder: Path, characters: int, **fields: object) -> dict[str, Any]:
    content = [
        {"type": "text", "text": (PROSE * 3)[:characters]},
        {"type": "image_url", "image_url": {"url": (folder / "photo.jpg").as_uri()}},
    ]
    return {"messages": [{"role": "user", "content": content}], **fields}


def test_a_long_text_fits_just_where_vllm_takes_it(calibrated: Path) -> None:
    """`check` counted a token per byte, three times too many: all of these were unknown."""
    calibration = library.Calibration.load(calibrated / "out" / "calibration.json")
    lengths = [8_000, 10_000, *range(10_600, 11_600, 25), 14_000]
    requests = [request(calibrated, length) for length in lengths]
    (found,) = served(calibrated / "model", [CONTEXT], requests)
    truth = ["no" if isinstance(one, str) else "fits" for one in found]
    assert set(truth) == {"fits", "no"}
    answers = [calibration.admits(one, allowed_local_media_path=calibrated) for one in requests]
    assert [answer.answer for answer in answers] == truth
    assert some(calibration.counting).why == ""
    costs = calibration.costs.model_copy(update={"counting": None})
    bounded = calibration.model_copy(update={"costs": costs})
    known = {bounded.admits(one, allowed_local_media_path=calibrated).answer for one in requests}
    assert known == {"unknown"}
