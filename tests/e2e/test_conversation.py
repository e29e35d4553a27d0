"""A chat that resends its history fails in a real `vllm serve` at the predicted turn."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcalib.admission.calibration import Calibration
from mmcalib.admission.check import check
from mmcalib.domain.shapes import Modality
from mmcalib.results.check import CheckedItem, Sessions
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import part, write_requests
from tests.e2e.serving import Server, serving
from tests.engine.conftest import folder_of

pytestmark = [pytest.mark.engine, pytest.mark.long]
# As many tokens of the bundled model's tokenizer, which merges no bytes: the assumed answer.
ANSWER = {"role": "assistant", "content": "a" * 1024}
SAYS = {
    "limit_mm_per_prompt": "At most 5 video(s) may be provided in one prompt.",
    "max_model_len": "exceeds model's maximum context length (32768)",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory, sample, engine_cache) -> Iterator[tuple[Server, Calibration]]:
    """The sample corpus, and a count that ends only the chats of median clips."""
    folder = tmp_path_factory.mktemp("chat")
    out = folder / "out"
    data = ("--data", sample / "image", "--data", sample / "video")
    model = folder_of(QWEN, engine_cache)
    words = ("run", "--model", model, *data, "--out", out)
    limits = ("--max-model-len", "32768", "--conversation", "image=99", "--conversation", "video=5")
    requests = ("--requests", sample / "requests.jsonl", "--validate", "none")
    done = mmcalib(engine_cache, *words, *limits, *requests)
    with serving(done.stderr, folder, out, sample, engine_cache, str(model)) as server:
        yield server, Calibration.load(out / "calibration.json")


def chat(asked: dict[str, Any], modality: Modality, item: Path, turns: int) -> dict[str, Any]:
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
def test_a_chat_fails_at_the_predicted_turn(
    served, sample, tmp_path, modality, which, limit
) -> None:
    server, calibration = served
    predicted = calibration.conversations[modality]
    items = getattr(predicted, which)
    assert (items.limit, predicted.label) == (limit, "assumed")
    lines = (sample / "requests.jsonl").read_text().splitlines()
    asked = json.loads(lines[int(predicted.request.rpartition(":")[2]) - 1])
    turns = [
        chat(asked, modality, Path(items.exemplar), turn) for turn in range(1, items.items + 2)
    ]

    answer = server.chat(turns[-2])
    assert answer.status == 200, answer
    text = predicted.first_tokens + (items.items - 1) * predicted.turn_tokens
    assert answer.prompt_tokens == text + items.items * items.tokens
    answer = server.chat(turns[-1])
    assert answer.status == 400
    assert SAYS[limit] in answer.said

    session = write_requests(tmp_path / "session.jsonl", turns)
    sessions = Sessions()
    for checked in check(calibration, requests=[session], allowed_root=sample):
        assert isinstance(checked, CheckedItem)
        sessions.add(checked)
    (failed,) = sessions.failures()
    assert failed.turn == items.items + 1
    assert limit in failed.admission.reason
