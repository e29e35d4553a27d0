"""What library calls say while they run: to the logger `mmcalib`, unless they are given more."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from PIL import Image

import mmcalib
from mmcalib.errors import ModelError
from mmcalib.progress import StepLog


def test_steps_are_logged_with_their_seconds(caplog: pytest.LogCaptureFixture) -> None:
    progress: mmcalib.Progress = StepLog()
    with caplog.at_level(logging.DEBUG, logger="mmcalib"):
        with progress.step("measuring", 3) as task:
            task.advance()
        progress.note("a note")
        progress.log("a line of vLLM")
    said = [(record.levelname, record.message) for record in caplog.records]
    assert said[0] == ("INFO", "measuring")
    assert said[1][1].startswith("measuring: 0.")
    assert said[2:] == [("INFO", "a note"), ("DEBUG", "a line of vLLM")]


@pytest.mark.engine
def test_calibrate_is_not_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with caplog.at_level(logging.INFO, logger="mmcalib"), pytest.raises(ModelError):
        mmcalib.calibrate("nobody/has-this", tmp_path)
    assert "finding the model" in caplog.text
