"""The emitted file in a real `vllm serve`, asked over HTTP: the served `usage` is the truth."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcalib.admission.calibration import Calibration
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import body, clip, part, photo, write_requests
from tests.e2e.serving import Server, prompt_tokens, serving
from tests.schemas import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def served(tmp_path_factory, engine_cache: Path) -> Iterator[tuple[Server, Calibration, Path]]:
    """Calibrate for three files and requests with tools, and serve the engine.yaml."""
    folder = tmp_path_factory.mktemp("serve")
    media = folder / "media"
    wide = part("image", photo(media / "wide.jpg", 1280, 720, 1))
    small = part("image", photo(media / "small.jpg", 200, 300, 2))
    video = part("video", clip(media / "clip.mp4", 320, 240, frames=40))
    asked = [[], [wide], [wide, small], [video]]
    bodies = (body(*parts, max_tokens=8, tools=[TOOL]) for parts in asked)
    requests = write_requests(media / "requests.jsonl", bodies)
    out = folder / "out"
    words = ("run", "--model", QWEN, "--data", media, "--requests", requests, "--out", out)
    parsed = ("--", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    depth = ("--max-model-len", "16384", "--validate", "budget")
    done = mmcalib(engine_cache, *words, *depth, *parsed)
    with serving(done.stderr, folder, out, media, engine_cache) as server:
        yield server, Calibration.load(out / "calibration.json"), media


def test_the_served_usage_is_what_was_measured(served: tuple[Server, Calibration, Path]) -> None:
    server, calibration, media = served
    text_only = prompt_tokens(server)
    corpus = calibration.corpus.modalities
    # The placeholder's begin and end stand around each item, in the prompt and not in the item.
    around = 2
    wide = prompt_tokens(server, part("image", media / "wide.jpg"))
    assert wide - text_only == corpus["image"].tokens["max"] + around
    pair = part("image", media / "wide.jpg"), part("image", media / "small.jpg")
    both = prompt_tokens(server, *pair)
    assert both - wide == corpus["image"].tokens["min"] + around
    video = prompt_tokens(server, part("video", media / "clip.mp4"))
    assert video - text_only == corpus["video"].tokens["max"] + around


def test_the_first_requests_of_the_docs_are_answered(served, tmp_path: Path) -> None:
    server, calibration, media = served
    shutil.copy(media / "small.jpg", tmp_path / "photo.jpg")
    page = (ROOT / "docs" / "get-started.md").read_text()
    shown = page.replace("http://localhost:8000", server.url).replace(QWEN, server.model)
    curl = re.search(r"^echo .*? -d @-$", shown, re.M | re.S)
    client = re.search(r"```python\n(import base64.*?)```", shown, re.S)
    assert curl
    assert client
    sent = subprocess.run(["bash", "-c", curl[0]], cwd=tmp_path, capture_output=True, check=True)
    picture = calibration.corpus.modalities["image"].tokens["min"]
    assert json.loads(sent.stdout)["usage"]["prompt_tokens"] > picture
    words = [sys.executable, "-c", client[1]]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=True).stdout


def test_requests_with_tools_are_served_by_the_emitted_command(served) -> None:
    """Beside tools OpenAI's default is `auto`, which vLLM rejects without a tool-call parser."""
    server, calibration, media = served
    for line in (media / "requests.jsonl").read_text().splitlines():
        admission = calibration.admits(json.loads(line), allowed_local_media_path=media)
        assert admission.fits, admission
        answer = server.chat(json.loads(line))
        assert answer.status == 200, answer
    named = {"type": "function", "function": {"name": "find"}}
    choice = body(tools=[TOOL], tool_choice=named, max_tokens=1)
    assert calibration.admits(choice).fits
    assert server.chat(choice).status == 200


def test_what_the_limits_exclude_is_rejected_and_the_server_lives_on(served) -> None:
    server, _, media = served
    small = part("image", media / "small.jpg")
    answer = server.chat(body(small, small, small, max_tokens=1))
    assert answer.status == 400
    assert "At most 2 image" in answer.said
    assert prompt_tokens(server, small) > 0


def test_a_larger_image_than_the_corpus_held_is_shrunk_to_the_cap(served, tmp_path: Path) -> None:
    """The cap is real in the server too: nothing larger than what was reserved gets through."""
    server, calibration, media = served
    larger = photo(media / "larger.jpg", 3000, 2000, 3)
    tokens = prompt_tokens(server, part("image", larger)) - prompt_tokens(server)
    assert tokens - 2 <= calibration.budget.calibrated.max_tokens_per_item["image"]
