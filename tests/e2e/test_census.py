"""A corpus that was scanned in parts is calibrated for as if it were read now."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from mmcalib import Calibration, calibrate
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import clip, photo, requests

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@dataclass(frozen=True)
class Scanned:
    media: Path
    requests: Path
    parts: tuple[Path, ...]


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory, engine_cache: Path) -> Scanned:
    folder = tmp_path_factory.mktemp("scanned")
    media = folder / "media"
    for number, (width, height) in enumerate([(640, 480), (1280, 720), (300, 900)]):
        photo(media / f"{number}.jpg", width, height, number)
    clip(media / "clip.mp4", 320, 240, 40)
    asked = requests(
        folder / "requests.jsonl",
        [("image", "media/0.jpg"), ("image", "media/1.jpg")],
        [("video", "media/clip.mp4")],
        [("image", "media/0.jpg")],
    )
    parts = []
    for index in (1, 2):
        out = folder / f"part-{index}"
        words = ("--data", media, "--requests", asked, "--shard", f"{index}/2", "--out", out)
        assert mmcalib(engine_cache, "scan", *words).returncode == 0
        parts.append(out)
    return Scanned(media, asked, tuple(parts))


def settings(out: Path) -> dict[str, object]:
    return yaml.safe_load((out / "engine.yaml").read_text())


def run(cache: Path, out: Path, *words: str | Path) -> Calibration:
    done = mmcalib(
        cache, "run", "--model", QWEN, "--out", out, "--validate", "none", "--quiet", *words
    )
    assert (done.returncode, done.stderr) == (0, "")
    return Calibration.load(out / "calibration.json")


def test_parts_give_the_settings_of_the_whole(
    scanned: Scanned, engine_cache: Path, tmp_path: Path
) -> None:
    read = run(
        engine_cache, tmp_path / "read", "--data", scanned.media, "--requests", scanned.requests
    )
    parts = [word for part in scanned.parts for word in ("--census", part)]
    counted = run(engine_cache, tmp_path / "counted", *parts)
    expected = settings(tmp_path / "read")
    # What repeats follows from the order of requests, which a census does not keep.
    expected.pop("mm-processor-cache-gb")
    assert settings(tmp_path / "counted") == expected
    assert counted.corpus == read.corpus
    checks = {check.name: check.status for check in counted.checks}
    assert (checks["stand-ins agree"], checks["processor cache"]) == ("pass", "skip")


def test_media_that_are_elsewhere_count_all_the_same(
    scanned: Scanned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_cache: Path
) -> None:
    whole = tmp_path / "whole"
    assert mmcalib(engine_cache, "merge", *scanned.parts, "--out", whole).returncode == 0
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(whole, elsewhere)
    census = elsewhere / "census.json"
    moved = census.read_text().replace(json.dumps(str(scanned.media))[1:-1], "/elsewhere")
    census.write_text(moved)
    monkeypatch.setenv("MMCALIB_CACHE_DIR", str(engine_cache))
    here, there = (
        calibrate(QWEN, census=one, validate="none") for one in (whole / "census.json", elsewhere)
    )
    assert there.engine_args() == here.engine_args()
    tokens = [
        {m: (n.items, n.unique_shapes, n.tokens.max) for m, n in one.corpus.modalities.items()}
        for one in (here, there)
    ]
    assert tokens[0] == tokens[1]
    found = {check.name: check for check in there.checks}
    assert found["real items measured"].status == "warn"
    assert "4 sampled items were not loaded" in found["real items measured"].detail
    assert "stand-ins agree" not in found
