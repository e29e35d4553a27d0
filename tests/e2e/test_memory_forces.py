"""What calibration is worth on GPUs of 16 and 12 GiB, rehearsed for one large picture in ten."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmcalib
from mmcalib.admission.calibration import Calibration

from .command import QWEN
from .media import photo

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(9):
        photo(folder / f"{number}.jpg", 800 + 40 * number, 600)
    # 16,384 tokens are the most that the model takes of one picture; this is 16,290.
    photo(folder / "large.jpg", 5400, 2700)
    return folder


def calibrated(pictures: Path, gpu: str) -> Calibration:
    policy = mmcalib.Policy(max_model_len=32_768)
    return mmcalib.calibrate(QWEN, pictures, policy=policy, gpu=gpu, validate="none")


def status(found: Calibration, check: str) -> str:
    return next(c.status for c in found.checks if c.name == check)


def test_sixteen_gib_hold_more_with_every_item_whole(pictures: Path) -> None:
    found = calibrated(pictures, "RTX-4080")
    default, after = found.memory.default.kv_cache_tokens, found.memory.calibrated.kv_cache_tokens
    assert default
    assert after
    assert after >= 1.7 * default
    assert all(p.share_downscaled == 0 for p in found.frontier if p.choice == "chosen")
    assert status(found, "memory reserve") == "pass"
    smaller = [p for p in found.frontier if p.max_tokens <= 1024 and p.kv_cache_tokens]
    assert max(p.kv_cache_tokens or 0 for p in smaller) >= 2 * default


def test_twelve_gib_start_at_all_because_one_picture_is_made_smaller(pictures: Path) -> None:
    found = calibrated(pictures, "RTX-3060-12G")
    assert found.memory.default.kv_cache_tokens is None
    assert (found.memory.default.kv_cache_bytes or 0) < 0
    assert found.memory.calibrated.kv_cache_tokens
    (chosen,) = [p for p in found.frontier if p.choice == "chosen"]
    assert chosen.share_downscaled == pytest.approx(0.1)
    larger = [p for p in found.frontier if p.max_tokens > chosen.max_tokens]
    assert all((p.kv_cache_tokens or 0) < 32_768 for p in larger), "as little as will do is taken"
    assert status(found, "memory reserve") == "pass"
    assert status(found, "detail kept") == "warn"
    reason = next(e.reason for e in found.evidence if "longest_edge" in e.setting)
    assert reason.startswith(
        "forced, 1 item downscaled: otherwise vLLM would not start on RTX-3060-12G"
    )
