"""`mmcalib drift` on the `/metrics` of a real server: the calibrated load, then another."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import photo, requests
from tests.e2e.serving import Server, part, serving
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.slow]

REQUESTS = 32


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, engine_cache: Path
) -> Iterator[tuple[Server, Path, Path]]:
    """A calibration of requests with one small picture each, of which any may have three, and a
    server of it. The text is bounded: the mean prompt has little beside its picture.
    """
    folder = tmp_path_factory.mktemp("drift")
    media, out = folder / "media", folder / "out"
    photo(media / "small.jpg", 200, 300, 1)
    photo(media / "large.jpg", 640, 480, 2)
    one = [[("image", "media/small.jpg")]] * 9 + [[("image", "media/large.jpg")]]
    lines = requests(folder / "requests.jsonl", *one)
    words = ("run", "--model", QWEN, "--requests", lines, "--count", "image=3", "--out", out)
    more = ("--max-model-len", "4096", "--text-reserve-tokens", "64", "--validate", "budget")
    done = mmcalib(engine_cache, *words, *more)
    assert done.returncode == 0, done.stderr
    with serving(done.stderr, folder, out, media, engine_cache) as server:
        yield server, out, media


def test_a_shifted_load_is_told_from_the_same(
    served: tuple[Server, Path, Path], engine_cache: Path, tmp_path: Path
) -> None:
    server, out, media = served
    small, large = part("image", media / "small.jpg"), part("image", media / "large.jpg")

    def drift(*words: str | Path) -> tuple[int, dict[str, Any]]:
        command = ("drift", "--calibration", out, "--json", "--quiet", *words)
        done = mmcalib(engine_cache, *command)
        fits("drift", done.stdout)
        return done.returncode, json.loads(done.stdout)

    for number in range(REQUESTS):
        assert server.ask(large if number % 10 == 9 else small)[0] == 200
    code, same = drift("--metrics", f"{server.url}/metrics")
    assert (code, same["verdict"], same["requests"]) == (0, "fits", REQUESTS), same
    likeness = {figure["name"]: figure["likeness"] for figure in same["figures"]}
    judged = ("refused", "larger prompts", "prompt tokens", "items per request")
    assert [likeness[name] for name in judged] == ["same"] * len(judged)

    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        (tmp_path / "before").write_bytes(answer.read())
    for _ in range(REQUESTS):
        assert server.ask(large, large, large)[0] == 200
    assert server.ask(*[small] * 4)[0] == 400
    code, other = drift("--metrics", f"{server.url}/metrics", "--since", tmp_path / "before")
    assert (code, other["verdict"], other["requests"]) == (3, "shifted", REQUESTS)
    shifted = {f["name"]: f for f in other["figures"] if f["likeness"] == "shifted"}
    assert {"refused", "prompt tokens", "items per request"} <= shifted.keys()
    assert shifted["items per request"]["today"] == 3.0
    assert shifted["refused"]["today"] == pytest.approx(1 / (REQUESTS + 1))
    figures = {figure["name"]: figure for figure in other["figures"]}
    assert figures["multimodal cache hits"]["today"] > 0.9
    assert figures["answers cut"]["today"] == 1.0
