"""The encoder sweep in one real engine: a curve of what the encoder takes, beyond one profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmcalib import Calibration
from mmcalib.result.encoder_sweep import ModalitySweep
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import photo
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.long]

# Qwen2.5-VL-3B: an embedding of the language model's width, in bfloat16.
WIDTH, ITEM_BYTES = 2048, 2


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, engine_cache: Path) -> Calibration:
    folder = tmp_path_factory.mktemp("sweep")
    for number, (width, height) in enumerate([(1280, 720), (640, 480)]):
        photo(folder / "media" / f"{number}.jpg", width, height, number)
    out = folder / "out"
    words = ("run", "--model", QWEN, "--data", folder / "media", "--out", out)
    done = mmcalib(engine_cache, *words, "--validate", "startup", "--encoder-sweep")
    assert done.returncode == 0, done.stderr
    text = (out / "calibration.json").read_text("utf-8")
    fits("calibration", json.loads(text))
    assert "encoder peak on cpu: image" in " ".join(done.stderr.split())
    return Calibration.load(out / "calibration.json")


@pytest.fixture(scope="module")
def image(swept: Calibration) -> ModalitySweep:
    assert swept.encoder_sweep is not None
    assert set(swept.encoder_sweep.modalities) == {"image"}
    return swept.encoder_sweep.modalities["image"]


def test_eight_sizes_reach_up_to_the_cap(swept: Calibration, image: ModalitySweep) -> None:
    single = [point.tokens for point in image.points if point.items == 1]
    assert len(single) >= 8
    assert single == sorted(set(single))
    assert single[-1] == image.cap_tokens
    assert image.cap_tokens == swept.budget.calibrated.max_tokens_per_item["image"]
    assert sorted(point.items for point in image.points if point.items > 1) == [2, 4]
    assert image.not_encoded == []


def test_what_goes_into_the_encoder_cache_is_an_embedding_per_token(image: ModalitySweep) -> None:
    for point in image.points:
        assert point.output_bytes == point.tokens * WIDTH * ITEM_BYTES
    assert image.cache_bytes_per_token == WIDTH * ITEM_BYTES


def test_a_full_encoder_cache_is_its_tokens_times_that(swept: Calibration) -> None:
    found = swept.encoder_sweep
    assert found is not None
    assert found.cache_tokens == swept.budget.calibrated.encoder_budget_tokens
    assert found.cache_bytes == found.cache_tokens * WIDTH * ITEM_BYTES


def test_the_peak_grows_with_the_tokens_along_the_curve(image: ModalitySweep) -> None:
    single = [point for point in image.points if point.items == 1]
    peaks = [point.peak_bytes for point in single]
    assert peaks == sorted(peaks)
    assert image.curve is not None
    assert image.curve.worst_residual < 0.03
    for point in single:
        assert point.residual_bytes is not None
        assert image.curve.at(point.tokens) + point.residual_bytes == pytest.approx(
            point.peak_bytes, abs=1000
        )


def test_several_items_take_what_one_of_their_tokens_takes(image: ModalitySweep) -> None:
    assert image.curve is not None
    for point in image.points:
        if point.items > 1:
            assert point.peak_bytes == pytest.approx(image.curve.at(point.tokens), rel=0.1)


def test_the_profile_held_at_least_what_the_curve_says_of_its_step(
    swept: Calibration, image: ModalitySweep
) -> None:
    """vLLM's own profile encodes a full step, before a language model that may take more."""
    assert swept.startup is not None
    profiled = swept.startup.figures["activation_peak_bytes"]
    tokens = swept.budget.calibrated.profiled_tokens
    assert profiled is not None
    assert tokens is not None
    assert image.curve is not None
    assert image.curve.at(tokens) <= profiled


def test_it_ends_as_a_passed_check(swept: Calibration) -> None:
    check = next(check for check in swept.checks if check.name == "encoder sweep")
    assert check.status == "pass", check.detail


def test_the_photos_processor_seconds_say_how_many_cores_feed_an_encoder(
    swept: Calibration,
) -> None:
    found = swept.throughput
    assert found is not None
    assert found.mix is None
    image = found.modalities["image"]
    assert (image.items, image.measured) == (2, 2)
    assert image.cores_per_100_items_s == pytest.approx(100 * image.cpu_s, rel=1e-3)
    # A photo of a megapixel: more than a header's worth, less than anything that hangs.
    assert 0.001 < image.cpu_s <= image.costliest.cpu_s < 5
    assert image.costliest.exemplar.endswith(".jpg")


def test_a_cut_encoder_on_a_cpu_gives_seconds_and_no_rate(
    swept: Calibration, image: ModalitySweep
) -> None:
    found = swept.throughput
    assert found is not None
    assert (found.device, found.depth, found.true_depth) == ("cpu", 2, 32)
    rates = found.modalities["image"]
    seconds = [point.seconds for point in image.points if point.items == 1]
    assert rates.encoder_s is not None
    assert min(seconds) <= rates.encoder_s <= max(seconds)
    assert rates.encoder_least_s is not None
    assert 0 < rates.encoder_least_s <= rates.encoder_s
    assert (rates.items_per_s, rates.cores) == (None, None)
