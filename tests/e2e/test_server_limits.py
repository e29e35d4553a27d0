"""A limit of vLLM's server that a corpus exceeds: a run says it, and its command raises it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from mmcalib.admission.calibration import Calibration
from tests.e2e.command import mmcalib
from tests.e2e.media import sound

pytestmark = [pytest.mark.engine, pytest.mark.long]

NAME = "VLLM_MAX_AUDIO_DECODE_DURATION_S"


def test_the_command_that_a_run_names_counts_the_items_in_and_sets_the_variable(
    tmp_path: Path, engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    media, out = tmp_path / "media", tmp_path / "out"
    sound(media / "short.wav", 3.0, 16_000)
    sound(media / "long.wav", 9.0, 16_000)
    monkeypatch.setenv(NAME, "5")
    words = ("run", "--model", "Qwen/Qwen2-Audio-7B-Instruct", "--data", media, "--out", out)
    done = mmcalib(engine_cache, *words, "--validate", "budget", "--emit", "env")
    assert done.returncode == 0, done.stderr
    first = Calibration.load(out / "calibration.json")
    assert first.corpus.items == 1
    assert first.corpus.modalities["audio"].tokens["max"] == 75
    # Without a GPU that is all that R4 knows, and every output says so.
    reserved = {check.name: check for check in first.checks}["memory reserve"]
    assert (first.verdict, reserved.status) == ("pass", "warn")
    for text in (reserved.detail, (out / "report.md").read_text()):
        assert "only tokens were compared, because --gpu was not given" in text
    lines = (out / "engine.env").read_text().splitlines()
    assert f"{NAME}=5" in lines
    assert f"# {NAME}=9" in lines
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("the server rejects some items")]
    variable, *again = shlex.split(line.partition("include them: ")[2])
    assert variable == f"{NAME}=9"
    assert again[0] == "mmcalib"
    monkeypatch.setenv(*variable.split("=", 1))
    done = mmcalib(engine_cache, *again[1:])
    assert done.returncode == 0, done.stderr
    second = Calibration.load(out / "calibration.json")
    assert second.corpus.items == 2
    assert second.corpus.modalities["audio"].tokens["max"] == 225
    assert "the server rejects some items" not in done.stderr
    assert f"Serve:  {NAME}=9 " in done.stderr
    assert [x for x in (out / "engine.env").read_text().splitlines() if NAME in x] == [f"{NAME}=9"]
