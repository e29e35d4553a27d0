"""Lines of vLLM's custom benchmarks among chat requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmcalib.corpus.requests import RequestsSource
from mmcalib.domain.items import Item, Prompt, Skipped


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "c.wav"):
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def read(folder: Path, *lines: object) -> list[Prompt | Skipped]:
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(RequestsSource(path, scratch=folder / "scratch").prompts())


def only(folder: Path, line: object) -> Prompt:
    (prompt,) = read(folder, line)
    assert isinstance(prompt, Prompt), prompt
    return prompt


def part(folder: Path, kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, kind: {"url": (folder / name).as_uri()}}


def test_a_prompt_with_image_files(folder: Path) -> None:
    prompt = only(folder, {"prompt": "What?", "image_files": ["a.png", str(folder / "b.png")]})
    assert prompt.items == tuple(Item(str(folder / name), "image") for name in ("a.png", "b.png"))
    assert prompt.text == "What?"
    content = [
        {"type": "text", "text": "What?"},
        part(folder, "image_url", "a.png"),
        part(folder, "image_url", "b.png"),
    ]
    assert prompt.messages == [{"role": "user", "content": content}]


def test_content_in_any_order(folder: Path) -> None:
    content = [
        {"type": "text", "text": "Compare"},
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "and"},
        {"type": "image_url", "image_url": {"url": "b.png"}},
        {"type": "image_url", "image_url": "a.png"},
    ]
    prompt = only(folder, {"content": content, "output_tokens": 9})
    assert [Path(item.path).name for item in prompt.items] == ["a.png", "b.png", "a.png"]
    assert prompt.text == "Compare\nand"


def test_audio(folder: Path) -> None:
    prompt = only(folder, {"prompt": "Transcribe.", "audio": "c.wav"})
    assert prompt.items == (Item(str(folder / "c.wav"), "audio"),)
    assert only(folder, {"audio": "c.wav"}).items == prompt.items


def test_words_alone(folder: Path) -> None:
    prompt = only(folder, {"prompt": "What is the capital of India?", "output_tokens": 10})
    assert (prompt.items, prompt.text) == ((), "What is the capital of India?")


def test_beside_chat_requests(folder: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}], "prompt": "not this"}
    batch = {"custom_id": "1", "body": chat, "prompt": "nor this"}
    custom = {"prompt": "this", "image_files": ["a.png"]}
    assert [p.text for p in read(folder, chat, batch, custom) if isinstance(p, Prompt)] == [
        "hello",
        "hello",
        "this",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"prompt": "x", "image_files": []}, "image_files: "),
        ({"prompt": "x", "image_files": "a.png"}, "image_files: "),
        ({"prompt": "x", "image_files": [{"bytes": "x"}]}, "image_files.0: "),
        ({"prompt": ["x"], "image_files": ["a.png"]}, "prompt: "),
        ({"image_files": ["a.png"]}, "prompt: "),
        ({"content": []}, "content: "),
        ({"content": "words"}, "content: "),
        ({"content": [{"type": "image"}]}, "image: "),
        ({"content": [5]}, "content.0: "),
        ({"content": [{"type": "table"}]}, "0.content.0: "),
        ({"audio": 5}, "audio: "),
        ({"prompt": "x", "image_files": ["none.png"]}, "names a missing file: "),
        ({"input": "words"}, "messages: "),
    ],
)
def test_what_is_wrong_with_a_line(folder: Path, line: object, says: str) -> None:
    (refused, good) = read(folder, line, {"prompt": "x"})
    assert isinstance(refused, Skipped)
    assert isinstance(good, Prompt)
    assert says in refused.reason
