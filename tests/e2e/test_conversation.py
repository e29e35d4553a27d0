"""A chat that resends its history fails in a real `vllm serve` at the predicted turn."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcalib.admission.calibration import Calibration
from mmcalib.admission.check import check
from mmcalib.results.check import CheckedItem, Sessions
from tests.conftest import ROOT
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.serving import Server, part, serving
from tests.engine.conftest import folder_of

pytestmark = [pytest.mark.engine, pytest.mark.long]
SAMPLE = (ROOT / "sample").resolve()
# As many tokens of the bundled model's tokenizer, which merges no bytes: the assumed answer.
ANSWER = {"role": "assistant", "content": "a" * 1024}
SAYS = {
    "limit_mm_per_prompt": "At most 5 video(s) may be provided in one prompt.",
    "max_model_len": "exceeds model's maximum context length (32768)",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory, engine_cache: Path) -> Iterator[tuple[Server, Calibration]]:
    """The sample corpus, and a count that ends only the chats of median clips."""
    if not (SAMPLE / "requests.jsonl").is_file():
        pytest.skip("needs the sample corpus: python datasets/materialise.py sample")
    folder = tmp_path_factory.mktemp("chat")
    out = folder / "out"
    data = ("--data", SAMPLE / "image", "--data", SAMPLE / "video")
    model = folder_of(QWEN, engine_cache)
    words = ("run", "--model", model, *data, "--out", out)
    limits = ("--max-model-len", "32768", "--conversation", "image=99", "--conversation", "video=5")
    requests = ("--requests", SAMPLE / "requests.jsonl", "--validate", "none")
    done = mmcalib(engine_cache, *words, *limits, *requests)
    with serving(done.stderr, folder, out, SAMPLE, engine_cache, str(model)) as server:
        yield server, Calibration.load(out / "calibration.json")


def chat(asked: dict[str, Any], modality: str, item: Path, turns: int) -> dict[str, Any]:
    """The request of a turn, all of which ask the same about the item."""
    *system, message = asked["messages"]
    content = [part(modality, item) if "text" not in one else one for one in message["content"]]
    turn = [{"role": "user", "content": content}, ANSWER]
    return {"messages": [*system, *(turn * turns)[:-1]], "max_tokens": 1}


@pytest.mark.parametrize(
    ("modality", "which", "limit"),
    [
        ("image", "typical", "max_model_len"),
        ("video", "largest", "max_model_len"),
        ("video", "typical", "limit_mm_per_prompt"),
    ],
)
def test_a_chat_fails_at_the_predicted_turn(served, tmp_path, modality, which, limit: str) -> None:
    server, calibration = served
    predicted = calibration.conversations[modality]
    items = getattr(predicted, which)
    assert (items.limit, predicted.label) == (limit, "assumed")
    lines = (SAMPLE / "requests.jsonl").read_text().splitlines()
    asked = json.loads(lines[int(predicted.request.rpartition(":")[2]) - 1])
    turns = [
        chat(asked, modality, Path(items.exemplar), turn) for turn in range(1, items.items + 2)
    ]

    status, answer = server.send(turns[-2])
    assert status == 200, answer
    text = predicted.first_tokens + (items.items - 1) * predicted.turn_tokens
    assert answer["usage"]["prompt_tokens"] == text + items.items * items.tokens
    status, answer = server.send(turns[-1])
    assert status == 400
    assert SAYS[limit] in answer["error"]["message"]

    session = tmp_path / "session.jsonl"
    session.write_text("".join(f"{json.dumps(turn)}\n" for turn in turns))
    sessions = Sessions()
    for checked in check(calibration, requests=[session], allowed_root=SAMPLE):
        assert isinstance(checked, CheckedItem)
        sessions.add(checked)
    (failed,) = sessions.failures()
    assert failed.turn == items.items + 1
    assert limit in failed.admission.reason
