"""What servers leave, as each writes it: field names are those of the published schemas, named in
`mmcalib/corpus/exports`.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmcalib.corpus.asking import asked, fields_of
from mmcalib.corpus.chat import LONGEST_LINE_BYTES, parse_line
from mmcalib.corpus.entries import entries
from mmcalib.corpus.export_formats import requests_of
from mmcalib.corpus.exported import Exported, Unusable
from mmcalib.corpus.exports import AUTO, NAMES
from mmcalib.corpus.redacted import without_names, without_words


def png(width: int = 20, height: int = 10, colour: int = 0) -> str:
    kept = io.BytesIO()
    Image.new("L", (width, height), colour).save(kept, "png")
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


CHAT = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "What is on it?"}, image("https://example.org/a.jpg")],
    },
]
BODY = {"model": "m", "messages": CHAT, "max_tokens": 64, "temperature": 0.2}
ANSWER = {"choices": [], "usage": {"prompt_tokens": 300, "completion_tokens": 17}}

SPEND_LOG = {
    "request_id": "chatcmpl-1",
    "call_type": "acompletion",
    "api_key": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b",
    "spend": 0.0,
    "total_tokens": 317,
    "prompt_tokens": 300,
    "completion_tokens": 17,
    "startTime": "2026-08-01T10:00:00.500000+00:00",
    "endTime": "2026-08-01T10:00:02+00:00",
    "model": "m",
    "cache_hit": "False",
    "messages": {},
    "response": {},
    "proxy_server_request": json.dumps(BODY),
}
PAYLOAD = {
    "id": "chatcmpl-2",
    "trace_id": "t",
    "call_type": "acompletion",
    "status": "success",
    "prompt_tokens": 300,
    "completion_tokens": 17,
    "startTime": 1785578400.5,
    "model_parameters": {"temperature": 0.2},
    "messages": CHAT,
    "response": ANSWER,
    "cache_hit": None,
}
OBSERVATION = {
    "id": "o",
    "traceId": "t",
    "type": "GENERATION",
    "startTime": "2026-08-01T10:00:00.500Z",
    "model": "m",
    "modelParameters": {"max_tokens": "64"},
    "input": {"messages": CHAT},
    "output": {"role": "assistant", "content": "A cat."},
    "usage": {"input": 300, "output": 17, "total": 317, "unit": "TOKENS"},
}
EXPORTED_ROW = {
    "id": "o",
    "trace_id": "t",
    "type": "GENERATION",
    "start_time": "2026-08-01 10:00:00.500000",
    "model_parameters": "{}",
    "input": json.dumps(CHAT),
    "usage_details": {"input": 300, "output": 17},
}
VLLM_BODY = (
    "(APIServer pid=7) DEBUG 08-01 10:00:00 [request_logger.py:79] Request chatcmpl-3 JSON body: "
    + json.dumps(BODY)
)
NEW_YEAR_TO_AUGUST_S = (31 + 29 + 31 + 30 + 31 + 30 + 31) * 86400 + 10 * 3600
SENT_S = 1785578400.5


def found(entry: Any, form: str = AUTO) -> Exported:
    (one,) = requests_of(entry, form)
    assert isinstance(one, Exported), one
    return one


@pytest.mark.parametrize(
    ("form", "entry", "sent_s", "answered"),
    [
        ("openai", BODY, None, None),
        ("openai", {"timestamp": SENT_S * 1000, "request": BODY, "response": ANSWER}, SENT_S, 17),
        (
            "openai",
            {
                "time": "2026-08-01T10:00:00.5Z",
                "request": {"method": "POST", "body": json.dumps(BODY)},
                "response": {"status": 200, "body": json.dumps(ANSWER)},
            },
            SENT_S,
            17,
        ),
        ("openai", {"request_body": json.dumps(BODY), "response_body": ANSWER}, None, 17),
        ("litellm", SPEND_LOG, SENT_S, 17),
        ("litellm", PAYLOAD, SENT_S, 17),
        ("litellm", {"standard_logging_object": PAYLOAD}, SENT_S, 17),
        ("langfuse", OBSERVATION, SENT_S, 17),
        ("langfuse", EXPORTED_ROW, SENT_S, 17),
        ("vllm", VLLM_BODY, NEW_YEAR_TO_AUGUST_S, None),
    ],
)
def test_a_chat_is_found_in_each_form(
    form: str, entry: Any, sent_s: float | None, answered: int | None
) -> None:
    assert found(entry) == found(entry, form)
    one = found(entry)
    assert parse_line(json.dumps(one.body).encode()).written == CHAT
    assert (one.sent_s, one.answered_tokens) == (sent_s, answered)


def test_no_form_takes_the_entries_of_another() -> None:
    for form, entry in (("litellm", PAYLOAD), ("langfuse", OBSERVATION), ("vllm", VLLM_BODY)):
        for other in {*NAMES} - {form, "openai"}:
            (one,) = requests_of(entry, other)
            assert isinstance(one, Unusable), (form, other)


def test_parameters_of_langfuse_are_numbers_again() -> None:
    assert fields_of(found(OBSERVATION).body) == {"max_tokens": 64}


def test_a_trace_has_all_its_generations_and_nothing_else() -> None:
    span = {"id": "s", "traceId": "t", "type": "SPAN", "input": "whatever"}
    trace = {"id": "t", "observations": [span, OBSERVATION, OBSERVATION]}
    assert [*requests_of(trace, AUTO)] == [found(OBSERVATION)] * 2
    assert [*requests_of(span, AUTO)] == []


@pytest.mark.parametrize(
    "entry",
    [
        {**PAYLOAD, "call_type": "aembedding"},
        {**PAYLOAD, "cache_hit": True},
        {**SPEND_LOG, "cache_hit": "True"},
        "INFO 08-01 10:00:00 [x.py:1] Received request chatcmpl-3: params: SamplingParams(n=1)",
    ],
)
def test_what_no_server_was_asked_is_no_request(entry: Any) -> None:
    assert [*requests_of(entry, AUTO)] == []


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({**SPEND_LOG, "proxy_server_request": "{}"}, "store_prompts"),
        (
            {**PAYLOAD, "messages": [{"role": "user", "content": "redacted-by-litellm"}]},
            "redacted",
        ),
        (
            {
                **OBSERVATION,
                "input": [
                    {
                        "role": "user",
                        "content": [image("@@@langfuseMedia:type=image/png|id=1|source=bytes@@@")],
                    }
                ],
            },
            "storage",
        ),
        ({**OBSERVATION, "input": 7}, "no chat"),
        (VLLM_BODY[:-30], "--max-log-len"),
        ('{"messages": [', "not JSON"),
        ({"level": "info"}, "no request"),
        ({"conversations": [{"from": "human", "value": "Hello"}]}, "two turns"),
    ],
)
def test_what_lacks_is_said(entry: Any, word: str) -> None:
    (one,) = requests_of(entry, AUTO)
    assert isinstance(one, Unusable)
    assert word in one.reason


def test_sharegpt_is_what_was_said_first_with_its_picture() -> None:
    entry = {
        "id": "1",
        "image": "coco/1.jpg",
        "conversations": [
            {"from": "human", "value": "<image>\nDescribe it."},
            {"from": "gpt", "value": "A cat."},
        ],
    }
    assert found(entry).body["messages"] == [
        {"role": "user", "content": [image("coco/1.jpg"), {"type": "text", "text": "Describe it."}]}
    ]


@pytest.mark.parametrize(
    ("entry", "urls"),
    [
        ({"prompt": "Hello", "output_tokens": 12}, []),
        ({"prompt": "Hello", "image_files": ["a.jpg"], "output_tokens": 12}, ["a.jpg"]),
        ({"prompt": "Hello", "image": "b.jpg", "output_tokens_count": 12}, ["b.jpg"]),
        ({"question": "Hello", "img": ["b.jpg", "c.jpg"], "output_tokens_count": 12}, [*"bc"]),
    ],
)
def test_data_sets_of_load_generators(entry: dict[str, Any], urls: list[str]) -> None:
    one = found(entry)
    request = parse_line(json.dumps(one.body).encode())
    assert one.answered_tokens == 12
    assert [word for message in request.messages for word in message.words] == ["Hello"]
    named = [media[1] for message in request.messages for media in message.media if media]
    assert [name.removesuffix(".jpg") for name in named] == [u.removesuffix(".jpg") for u in urls]


def listed(tmp_path: Path, text: str) -> list[Any]:
    (tmp_path / "log").write_text(text, encoding="utf-8")
    return [*entries(tmp_path / "log")]


def test_entries_of_a_list_and_of_lines_are_the_same(tmp_path: Path) -> None:
    rows = [{"a": "x" * 40_000, "n": n} for n in range(9)]
    assert listed(tmp_path, json.dumps(rows)) == rows
    assert listed(tmp_path, "\ufeff" + json.dumps(rows, indent=2) + "\n") == rows
    assert listed(tmp_path, "\n\n".join(map(json.dumps, rows))) == rows
    assert listed(tmp_path, json.dumps({"data": rows, "meta": {}})) == rows
    assert listed(tmp_path, "[]") == []


def test_a_list_that_breaks_off_says_so_after_what_was_whole(tmp_path: Path) -> None:
    *whole, last = listed(tmp_path, json.dumps([{"n": 1}, {"n": 2}])[:-3])
    assert whole == [{"n": 1}]
    assert isinstance(last, Unusable)


def test_an_endless_line_is_not_held(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b'{"a": "')
        file.seek(LONGEST_LINE_BYTES + 10)
        file.write(b'"}\n{"b": 1}\n')
    long, after = entries(tmp_path / "log")
    assert isinstance(long, Unusable)
    assert after == {"b": 1}


_TEXT = st.text(max_size=40)
_PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, _TEXT), max_size=3)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "tool"]), "content": _TEXT | _PARTS},
    optional={"name": _TEXT, "tool_calls": st.just([{"function": {"arguments": '{"a": 1}'}}])},
)
_TOOL = st.builds(
    lambda name: {"type": "function", "function": {"name": name, "parameters": {"a": {}}}}, _TEXT
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_MESSAGE, min_size=1, max_size=3), st.lists(_TOOL, min_size=1, max_size=3))
def test_redacted_words_count_as_many_bytes(messages: Any, tools: Any) -> None:
    kept = [without_words(message, []) for message in messages]
    fields = {"max_tokens": 5, "tools": tools, "response_format": {"type": "json_object"}}
    told, was = asked(kept, without_names(fields)), asked(messages, fields)
    assert told.text_bytes >= was.text_bytes
    assert told.text_bytes - was.text_bytes <= len(messages)
    assert told.tool_bytes >= was.tool_bytes
    assert (told.answer_tokens, told.plain) == (5, False)
    assert set("".join(str(part["content"]) for part in kept)) <= set("x [{}]':,typetext")
