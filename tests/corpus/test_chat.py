"""The context that a request needs, read from its line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mmcalib.corpus.chat import ChatRequest, text_bytes, url_part
from mmcalib.corpus.lines import parse_line, seconds_of
from mmcalib.corpus.requests import Reading, RequestsSource

USER = {"role": "user", "content": "why?"}
PICTURE = {"type": "image_url", "image_url": {"url": "a.png"}}


def found(**fields: Any) -> Any:
    request, _ = parse_line(json.dumps({"messages": [USER], **fields}).encode())
    return request.measure_context()


def test_the_answer_that_is_asked_for_is_read() -> None:
    assert found().answer_tokens is None
    assert found(max_tokens=4096).answer_tokens == 4096
    assert found(max_tokens=4096, max_completion_tokens=7).answer_tokens == 7
    assert found(max_tokens=4096, max_completion_tokens=None).answer_tokens == 4096


def test_a_batch_line_asks_in_its_body() -> None:
    body = {"messages": [USER], "max_tokens": 9, "tools": [{"type": "function"}]}
    request, _ = parse_line(json.dumps({"custom_id": "1", "body": body, "max_tokens": 1}).encode())
    assert request.answer_tokens == 9
    assert request.measure_context().tool_bytes > 0


def test_every_message_and_all_that_a_template_may_write_count() -> None:
    """Messages, tools and tool_calls count."""
    one = ChatRequest([USER]).measure_context()
    assert (one.messages, one.text_bytes) == (1, len("user") + len("why?") + 1)
    assert ChatRequest([USER] * 400).measure_context().messages == 400
    call = {"function": {"name": "f", "arguments": '{"a":1}'}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    called = ChatRequest([turn]).measure_context()
    # vLLM parses the arguments, and a template writes them anew, with spaces.
    assert called.text_bytes > len("assistant") + len(json.dumps([call]))
    tools = [{"type": "function", "function": {"name": "f", "description": "é"}}]
    assert ChatRequest([USER], {"tools": tools}).measure_context().tool_bytes > len(
        json.dumps(tools)
    )


@pytest.mark.parametrize(
    ("fields", "plain"),
    [
        ({"temperature": 0}, True),
        ({"add_generation_prompt": True, "chat_template_kwargs": {}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"add_special_tokens": True}, False),
        ({"documents": [{"text": "a"}]}, False),
    ],
)
def test_what_else_a_template_is_given_is_noticed(fields: dict[str, Any], plain: bool) -> None:
    assert found(**fields).plain is plain


def test_bytes_are_counted_before_and_after_normalisation() -> None:
    assert text_bytes("abc") == 3
    assert text_bytes("字") == 3
    assert text_bytes("\U0001d160") == 12
    assert text_bytes("e\u0301") == 3


def test_a_bare_request_names_no_file() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    request = ChatRequest.of_user([PICTURE, sound, {"type": "text", "text": "a"}, "b"])
    media = [("image_url", "a.png"), ("audio_url", "data:audio/wav;base64,AAAA")]
    assert (request.media(), request.text()) == (media, "a\nb")
    bare = request.strip_media()
    assert bare.media() == [("image_url", ""), ("audio_url", "")]
    assert (bare.items(), bare.text()) == ({"image": 1, "audio": 1}, "a\nb")
    assert bare.measure_context() == request.measure_context()
    assert not re.search("a.png|AAAA", json.dumps(bare.messages))


def test_media_are_replaced_in_their_order() -> None:
    request = ChatRequest([USER, {"role": "user", "content": [PICTURE, "a", PICTURE]}], {"n": 1})
    changed = request.replace_media(["b.png", "c.png"])
    parts = [url_part("image_url", "b.png"), "a", url_part("image_url", "c.png")]
    assert changed == ChatRequest([USER, {"role": "user", "content": parts}], {"n": 1})
    assert request.media() == [("image_url", "a.png")] * 2


def test_a_digest_tells_texts_apart_and_not_media() -> None:
    assert len({ChatRequest.of_user(["a", url_part("image_url", u)]).digest() for u in "ab"}) == 1
    plain = ChatRequest([USER]).digest()
    assert plain != ChatRequest.of_user("why!").digest()
    assert plain != ChatRequest([USER], {"tools": [{}]}).digest()


def test_texts_are_read_again_without_their_media(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    content = [{"type": "text", "text": "a"}, PICTURE, PICTURE]
    line = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 5})
    path.write_text(f"{line}\nbroken\n")
    (text,) = RequestsSource(path, Reading(tmp_path / "none")).texts()
    assert (text.request.answer_tokens, text.request.items()) == (5, {"image": 2})
    assert "a.png" not in json.dumps(text.request.messages)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0.0),
        (12.5, 12.5),
        ("12.5", 12.5),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:01:00+01:00", 60.0),
        ("1970-01-01T00:01:00", 60.0),
        ("yesterday", None),
        ("nan", None),
        (True, None),
        (None, None),
        ([1], None),
        (10**400, None),
    ],
)
def test_a_timestamp(written: object, seconds: float | None) -> None:
    assert seconds_of(written) == seconds


def test_every_kind_of_line_may_have_one(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    lines = [
        {**chat, "timestamp": 1},
        {"custom_id": "a", "timestamp": 2, "body": chat},
        {"prompt": "hello", "timestamp": "3"},
        chat,
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    source = RequestsSource(path, Reading(tmp_path))
    assert [text.sent_s for text in source.texts()] == [1.0, 2.0, 3.0, None]
