"""What `check` says of a request by vLLM's own grammar, against what vLLM itself makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmcalib.corpus.chat import ChatRequest
from mmcalib.corpus.grammar import Grammar
from mmcalib.corpus.lines import NOT_MODELLED, BadRequest, UnknownPart, parse_line
from mmcalib.engine.messages import CountTexts, FindGrammar
from tests.engine.checkpoints import TEMPLATE, speaking
from tests.engine.conftest import Lab

URL = "file:///a.png"
USER = {"role": "user", "content": "a"}
TOOL = {"type": "function", "function": {"name": "f"}}
pytestmark = pytest.mark.engine
WORDS = {"type": "text", "text": "z"}


@pytest.fixture(scope="module")
def model(lab: Callable[[str], Lab], host: Any, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("speaking") / "model"
    return Lab(host, speaking(lab("Qwen/Qwen2.5-VL-3B-Instruct").folder, folder, TEMPLATE))


@pytest.fixture(scope="module")
def found(model: Lab) -> dict[str, Any]:
    grammar: dict[str, Any] = model.host.ask(FindGrammar(("image",)), "asking").grammar
    return grammar


def answer(grammar: Grammar, body: dict[str, Any]) -> str:
    try:
        return "unknown" if grammar.find_doubt(parse_line(json.dumps(body).encode())[0]) else "fits"
    except BadRequest as error:
        judged = grammar.classify_part(error) if isinstance(error, UnknownPart) else error
        return "unknown" if str(judged).endswith(NOT_MODELLED) else "no"


INT = {"type": "integer"}


def json_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


# Each with what vLLM 0.32 makes of it (`ChatCompletionRequest`, `SamplingParams`).
FIELDS: dict[str, list[dict[str, Any]]] = {
    "no": [
        *({"temperature": 3}, {"temperature": "nan"}, {"repetition_penalty": "inf"}, {"top_p": 0}),
        *({"n": 0}, {"n": 2, "temperature": 0}, {"prompt_logprobs": 99}, {"prompt_logprobs": "1"}),
        *({"prompt_logprobs": 1, "stream": True}, {"top_logprobs": 2}),
        *({"stream_options": {"include_usage": True}}, {"tools": []}, {"tools": [TOOL]}),
        *({"tool_choice": "auto"}, {"allowed_token_ids": []}, {"allowed_token_ids": [-1]}),
        *({"stop_token_ids": [1 << 40]}, {"logprob_token_ids": [1]}),
        *({"logprob_token_ids": [1] * 129, "logprobs": True}, {"stop": [""]}, {"top_k": 1 << 64}),
        *({"cache_salt": "a" * 129}, {"cache_salt": "a/b"}, {"seed": 1 << 63}, {"max_tokens": 1.5}),
        *({"min_tokens": -1}, {"chat_template": ""}, {"priority": 1 << 63}),
        {"mm_processor_kwargs": {"fps": 1}},
    ],
    "fits": [
        *({"temperature": "0.5"}, {"top_p": 1.0}, {"n": 2}, {"n": "2", "temperature": 0.5}),
        *({"n": 1, "temperature": 0}, {"prompt_logprobs": 1}),
        {"top_logprobs": 2, "logprobs": True},
        {"stream_options": {"include_usage": True}, "stream": True},
        *({"tools": [TOOL], "tool_choice": "none"}, {"allowed_token_ids": [1, "2"]}),
        *({"logprob_token_ids": [1], "logprobs": True}, {"top_k": 1 << 40}),
        *({"cache_salt": "a" * 128}, {"seed": (1 << 63) - 1}, {"seed": -(1 << 63)}, {"stop": "a"}),
        *({"max_tokens": "2881"}, {"max_tokens": 2881.0}),
        *({"structured_outputs": {"choice": ["a", "b"]}}, {"response_format": {"type": "text"}}),
        {"response_format": {"type": "json_object"}},
        {"response_format": json_format({"type": "object", "properties": {"a": INT}})},
        *({"vllm_xargs": {}, "logit_bias": {}, "media_io_kwargs": {}}, {"priority": 1}),
        *({"watermarking": True}, {"echo": True}, {"routed_experts_prompt_start": 1}),
        *({"repetition_detection": {}}, {"repetition_detection": {"min_count": -1}}),
        *({"repetition_detection": {"max_pattern_size": 4, "min_count": "3"}}, {"nobody_knows": 1}),
    ],
    "unknown": [
        *({"logit_bias": {"1": 1}}, {"structured_outputs": {"regex": "a"}}),
        {"structured_outputs": {}},
        {"response_format": json_format({"type": "string", "pattern": "("})},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "text"}, "structured_outputs": {"choice": ["a"]}},
        *({"echo": True, "stream": True}, {"echo": True, "add_generation_prompt": False}),
        *({"routed_experts_prompt_start": 2}, {"repetition_detection": {"max_pattern_size": 4}}),
        {"repetition_detection": {"min_pattern_size": 1}},
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "fields"), [(right, one) for right, each in FIELDS.items() for one in each]
)
def test_fields(found: dict[str, Any], fields: dict[str, Any], right: str) -> None:
    assert answer(Grammar(found), {"messages": [USER], **fields}) == right


@pytest.mark.slow
def test_tools_where_the_server_parses_them(found: dict[str, Any]) -> None:
    grammar = Grammar(found, tools=True)
    assert answer(grammar, {"messages": [USER], "tools": [TOOL]}) == "fits"
    assert answer(grammar, {"messages": [USER], "tools": [{"type": "f"}]}) == "no"


PARTS: list[tuple[object, str]] = [
    ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, "fits"),
    ({"type": "image_url", "image_url": {"url": URL, "detail": "x"}}, "no"),
    ({"type": "image_url", "image_url": URL}, "no"),
    ({"type": "image_url", "image_url": None, "uuid": "k"}, "unknown"),
    ({"image_url": URL}, "fits"),
    ({"type": "input_image", "image_url": URL, "detail": "auto"}, "fits"),
    ({"type": "input_image", "image_url": URL}, "no"),
    ({"type": "input_text", "text": "a"}, "fits"),
    ({"type": "input_text"}, "fits"),
    ({"type": "text", "text": 7}, "fits"),
    ({"type": "tool_reference", "name": "f"}, "unknown"),
    ({"tool_reference": "f", "name": "f"}, "unknown"),
    ({"type": "image_embeds", "image_embeds": "x"}, "no"),
    ({"type": "file", "file": {"file_id": "x"}}, "no"),
    ({"type": "video", "video": ["f1.jpg"]}, "no"),
    ({"type": "text", "text": "<|image_pad|>"}, "unknown"),
    ({"text": "a"}, "no"),
    ({"type": "text", "text": "a", "uuid": "k"}, "no"),
    ({"type": "refusal", "refusal": "a", "uuid": "k"}, "no"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "right"), PARTS)
def test_parts(found: dict[str, Any], part: object, right: str) -> None:
    body = {"messages": [{"role": "user", "content": [part, WORDS]}]}
    assert answer(Grammar(found), body) == right


@pytest.mark.slow
def test_a_server_of_embeddings_looks_into_texts(found: dict[str, Any]) -> None:
    for words, right in (("a", "fits"), (7, "unknown")):
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": words}, WORDS]}]}
        assert answer(Grammar(found, embeds=True), body) == right


CONTENTS: tuple[Any, ...] = (
    *(["a"], ["a", WORDS], [{"type": "input_text", "text": "a"}], [{"type": "text"}]),
    *([{"type": "refusal", "refusal": "a"}], [{"type": "thinking", "thinking": "a"}], [], "a"),
    *([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], None, 5),
    *([{"type": "input_text", "text": "a"}, WORDS], [{"type": "text", "text": None}, WORDS]),
    *([{"type": "text", "text": 7}, WORDS], [{"type": "thinking", "thinking": 7}, WORDS], {}),
    *([{"type": "refusal", "refusal": ["a"]}, WORDS], [{"type": "output_text"}, WORDS]),
    *([{"type": "text", "text": 7}], [{"type": "thinking"}]),
)
CALLS = (
    {"type": "function", "function": {"name": "f", "arguments": "{}"}},
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}},
    {"id": "1", "type": "custom", "custom": {"name": "f", "input": "a"}},
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
)


@pytest.mark.slow
def test_what_messages_may_be_is_what_vllm_takes(model: Lab, found: dict[str, Any]) -> None:
    """Contents of every role, and tool calls, rendered by vLLM."""
    roles = ("user", "system")
    turns: list[dict[str, Any]] = [
        *({"role": role, "content": one} for role in roles for one in CONTENTS),
        *({"role": "assistant", "content": "a", "tool_calls": [c]} for c in CALLS),
    ]
    asked = tuple(ChatRequest([turn, USER]) for turn in turns)
    grammar = Grammar(found)
    ours = [answer(grammar, {"messages": [turn, USER]}) for turn in json.loads(json.dumps(turns))]
    tokens = model.host.ask(CountTexts(asked), "counting").tokens
    theirs = ["fits" if isinstance(one, int) else "no" for one in tokens]
    assert list(zip(turns, ours, strict=True)) == list(zip(turns, theirs, strict=True))


def test_an_earlier_calibration_knows_no_field() -> None:
    grammar = Grammar({})
    assert answer(grammar, {"messages": [USER], "max_tokens": 3}) == "fits"
    assert answer(grammar, {"messages": [USER], "temperature": 1}) == "unknown"


@pytest.mark.slow
@pytest.mark.parametrize("words", ["<image> a", "<image> <image>", "a", "<video>"])
def test_a_template_of_texts_may_name_no_more_items_than_there_are(
    lab: Callable[[str], Lab], host: Any, tmp_path: Path, words: str
) -> None:
    model = Lab(host, speaking(lab("OpenGVLab/InternVL2-2B").folder, tmp_path / "model", None))
    grammar = Grammar(model.host.ask(FindGrammar(("image",)), "asking").grammar)
    picture = {"type": "image_url", "image_url": {"url": URL}}
    turn = {"role": "user", "content": [picture, {"type": "text", "text": words}]}
    ours = answer(grammar, {"messages": [turn]})
    asked = (ChatRequest([turn]).strip_media(),)
    (theirs,) = model.host.ask(CountTexts(asked), "counting").tokens
    assert ours == ("fits" if isinstance(theirs, int) else "no"), theirs
