"""A setting that does nothing is not emitted, and the run says so (R8)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mmcalib import Calibration
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import clip, photo

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_frames_that_the_loader_ignores_are_not_written(tmp_path: Path, engine_cache: Path) -> None:
    """Qwen2.5-VL's video loader goes by fps and has no ear for `num_frames`."""
    photo(tmp_path / "media/a.jpg", 640, 480)
    clip(tmp_path / "media/b.mp4", 320, 240, frames=40)
    asked = json.dumps({"video": {"num_frames": 8, "fps": 1}})
    done = mmcalib(
        engine_cache,
        *("run", "--model", QWEN, "--data", tmp_path / "media", "--out", tmp_path / "out"),
        *("--validate", "budget", "--media-io-kwargs", asked),
    )
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load((tmp_path / "out/engine.yaml").read_text())
    assert written["media-io-kwargs"] == {"video": {"fps": 1}}
    calibration = Calibration.load(tmp_path / "out/calibration.json")
    check = next(c for c in calibration.checks if c.name == "effect of each setting")
    assert check.status == "warn"
    assert "media_io_kwargs.video.num_frames" in check.detail
    effects = {e.setting: e.effect for e in calibration.evidence}
    assert all(effects.values()), effects
    assert effects["media_io_kwargs.video.fps"].startswith("without it: video of")
