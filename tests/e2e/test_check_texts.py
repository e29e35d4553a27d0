"""Long texts, calibrated with vLLM and checked without it."""

from pathlib import Path

import pytest

from tests.builders import some
from tests.conftest import ROOT
from tests.e2e.command import QWEN, calibrated
from tests.e2e.media import body, part, photo
from tests.engine.checkpoints import speaking
from tests.engine.conftest import folder_of
from tests.engine.test_texts import served

pytestmark = [pytest.mark.engine, pytest.mark.slow]
CONTEXT = 4096
PROSE = (ROOT / "docs" / "explain" / "how-it-works.md").read_text()


def test_a_long_text_fits_just_where_vllm_takes_it(tmp_path: Path, engine_cache: Path) -> None:
    """`check` counted a token per byte, three times too many: all of these were unknown."""
    model = speaking(folder_of(QWEN, engine_cache), tmp_path / "model")
    data = photo(tmp_path / "photo.jpg", 640, 480)
    words = ("--model", model, "--data", data, "--validate", "none", "--quiet")
    limit = ("--max-model-len", str(CONTEXT))
    calibration = calibrated(engine_cache, tmp_path / "out", *words, *limit)
    lengths = [8_000, 10_000, *range(10_600, 11_600, 25), 14_000]
    requests = [body(part("image", data), text=(PROSE * 3)[:length]) for length in lengths]
    (found,) = served(model, [CONTEXT], requests)
    truth = ["no" if isinstance(one, str) else "fits" for one in found]
    assert set(truth) == {"fits", "no"}
    answers = [calibration.admits(one, allowed_local_media_path=tmp_path) for one in requests]
    assert [answer.answer for answer in answers] == truth
    assert some(calibration.counting).why == ""
    costs = calibration.costs.model_copy(update={"counting": None})
    bounded = calibration.model_copy(update={"costs": costs})
    known = {bounded.admits(one, allowed_local_media_path=tmp_path).answer for one in requests}
    assert known == {"unknown"}
