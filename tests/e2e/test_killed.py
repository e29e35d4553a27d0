"""A run that is killed, at any moment, and begun again."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.command import QWEN, mmcalib, start
from tests.e2e.media import clip, photo, requests
from tests.processes import started_with, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.long]

KILLS = 10


def test_at_most_the_step_is_lost_that_it_was_in(tmp_path: Path, with_vllm: None) -> None:
    """Killed at ten moments: no question that had its answer is asked again, nothing runs on, and
    what comes out in the end is what a run gives that nobody disturbed.
    """
    corpus = tmp_path / "media"
    for number, (width, height) in enumerate([(640, 480), (1280, 720), (48, 64), (800, 200)]):
        photo(corpus / f"{number}.jpg", width, height, number)
    clip(corpus / "a.mp4", 320, 240, 30)
    asked = requests(corpus / "asked.jsonl", *([("image", f"{n}.jpg")] for n in (0, 1, 3)))
    words: list[str | Path] = ["run", "--model", QWEN, "--data", corpus, "--requests", asked]
    words += ["--gpu", "L4", "--validate", "budget", "--force", "--out"]

    began = time.monotonic()
    done = mmcalib(tmp_path / "other", *words, tmp_path / "whole")
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr

    cache, out = tmp_path / "cache", tmp_path / "killed"
    chance = random.Random(0)
    known: dict[str, int] = {}
    for _ in range(KILLS):
        process = start(cache, *words, out)
        time.sleep(chance.uniform(0, took))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(lambda: not started_with(f"MMCALIB_CACHE_DIR={cache}"), 60)
        answered = dict(answers(cache))
        assert known.items() <= answered.items(), "asked again"
        known = answered
    assert len(known) > len(dict(answers(tmp_path / "other"))) / 2, "killed before it was at work"
    done = mmcalib(cache, *words, out)
    assert done.returncode == 0, done.stderr
    assert known.items() <= dict(answers(cache)).items()
    assert found(out) == found(tmp_path / "whole")


def answers(cache: Path) -> Iterator[tuple[str, int]]:
    """Each answer that is remembered, and when it was written."""
    for path in (cache / "answers").glob("*.answer"):
        yield path.name, path.stat().st_mtime_ns


def found(out: Path) -> list[Any]:
    """The configuration, and all that was found, but for when and in how many seconds."""
    document = json.loads((out / "calibration.json").read_text("utf-8"))
    del document["created_at"]
    return [yaml.safe_load((out / "engine.yaml").read_text("utf-8")), untimed(document)]


def untimed(value: Any) -> Any:
    match value:
        case dict():
            return {k: untimed(v) for k, v in value.items() if not k.endswith(("_s", "seconds"))}
        case list():
            return [untimed(one) for one in value]
    return value
