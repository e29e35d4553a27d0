"""A calibration made by real vLLM, and new data against it without vLLM."""

import json
from pathlib import Path

import pytest

from tests.e2e.command import QWEN, Ran, mmcalib, run
from tests.e2e.media import clip, photo
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, engine_cache: Path) -> Ran:
    folder = tmp_path_factory.mktemp("checked")
    photo(folder / "media/wide.jpg", 1280, 720)
    clip(folder / "media/clip.mp4", 320, 240, 60)
    words = ("--validate", "none", "--max-model-len", "4096", "--quiet")
    data = ("--data", folder / "media")
    return run(engine_cache, folder / "out", "--model", QWEN, *data, *words)


def test_the_calibrated_corpus_fits(ran: Ran, engine_cache: Path) -> None:
    calibration = ran.out / "calibration.json"
    done = mmcalib(engine_cache, "check", "--calibration", calibration, ran.out.parent / "media")
    assert "2 of 2 fit" in done.stderr


def test_every_modality_has_a_proven_rule(ran: Ran) -> None:
    kept = ran.document["costs"]["modalities"]
    assert kept["image"]["rule"]["max_px"] > kept["image"]["rule"]["min_px"]
    assert kept["video"]["rule"]["sampling"]["num_frames"]
    assert all(part["compared"] > 20 for part in kept.values())


def test_new_data_is_told_apart(ran: Ran, engine_cache: Path, tmp_path: Path) -> None:
    photo(tmp_path / "new/photo.jpg", 1000, 750)
    photo(tmp_path / "new/strip.png", 3, 700)
    clip(tmp_path / "new/long.mp4", 640, 480, 400)
    done = mmcalib(
        engine_cache,
        *("check", "--calibration", ran.out / "calibration.json", "--json", "--quiet"),
        tmp_path / "new",
        code=3,
    )
    for line in done.stdout.splitlines():
        fits("check", line)
    *offenders, summary = [json.loads(line) for line in done.stdout.splitlines()]
    remedies = {Path(o["origin"]).name: o["remedy"] for o in offenders}
    assert set(remedies) == {"strip.png", "long.mp4"}
    assert remedies["strip.png"] == "crop or pad to at most 200:1"
    assert remedies["long.mp4"].startswith("cut to ")
    assert (summary["fits"], summary["no"], summary["unknown"]) == (1, 2, 0)
