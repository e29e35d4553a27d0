"""`check` on requests by vLLM's own grammar, against vLLM itself."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from mmcalib.corpus.chat import ChatRequest
from mmcalib.corpus.grammar import Grammar
from mmcalib.corpus.lines import NOT_MODELLED, BadRequest, UnknownPart, parse_line
from mmcalib.engine.messages import CountTexts, FindGrammar
from tests.engine.checkpoints import TEMPLATE, speaking
from tests.engine.conftest import Lab
from tests.programs import answer_of

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
    grammar: dict[str, Any] = model.host.ask(FindGrammar(("image",)), "asking")
    return grammar


def answer(grammar: Grammar, body: dict[str, Any]) -> str:
    line = json.dumps(body).encode()
    try:
        return "unknown" if grammar.find_doubt(parse_line(line)[0]) else "fits"
    except BadRequest as error:
        judged = grammar.classify_part(error) if isinstance(error, UnknownPart) else error
        return "unknown" if str(judged).endswith(NOT_MODELLED) else "no"


INT = {"type": "integer"}


def json_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


# As pydantic writes it, and what vLLM refuses or mmcalib does not judge in it.
USUAL = {
    "$defs": {"C": {"enum": ["a", "b"], "title": "C", "type": "string"}},
    "properties": {
        "c": {"$ref": "#/$defs/C"},
        "n": {"maximum": 9, "minimum": 0, "title": "N", "type": "integer"},
        "s": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "l": {"items": {"$ref": "#/$defs/C"}, "maxItems": 3, "type": "array"},
    },
    "required": ["c", "n"],
    "type": "object",
}
ODD: tuple[dict[str, Any], ...] = (
    {"$defs": {}},
    {"items": {"minimum": 2, "maximum": 1}},
    {"required": 7},
    {"oneOf": [{}]},
)
# Each with what vLLM 0.32 makes of it (`ChatCompletionRequest`, `SamplingParams`).
FIELDS: dict[str, list[dict[str, Any]]] = {
    "no": [
        *({"temperature": 3}, {"temperature": "nan"}, {"repetition_penalty": "inf"}, {"top_p": 0}),
        *({"n": 0}, {"n": 2, "temperature": 0}, {"prompt_logprobs": 99}, {"prompt_logprobs": "1"}),
        *({"prompt_logprobs": 1, "stream": True}, {"top_logprobs": 2}),
        *({"stream_options": {"include_usage": True}}, {"tools": []}, {"tools": [TOOL]}),
        *({"tool_choice": "auto"}, {"allowed_token_ids": []}, {"allowed_token_ids": [-1]}),
        *({"stop_token_ids": [1 << 40]}, {"logprob_token_ids": [1]}),
        *({"logit_bias": {"a": 1}}, {"logit_bias": {"-1": 1}}, {"logit_bias": {"1048576": 1}}),
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
        *({"response_format": json_format(USUAL)}, {"structured_outputs": {"json": USUAL}}),
        *({"structured_outputs": {"regex": r"\d{3}-(a|b)+"}}, {"logit_bias": {"5": 200}}),
        *({"bad_words": ["x", " y"]}, {"echo": True, "stream": True}),
        *({"vllm_xargs": {}, "logit_bias": {}, "media_io_kwargs": {}}, {"priority": 1}),
        *({"watermarking": True}, {"echo": True}),
        {"nobody_knows": 1},
    ],
    "unknown": [
        *({"structured_outputs": {"regex": one}} for one in ("a{3,1}", "(?=a)b", "(", "(a{9}){9}")),
        *({"structured_outputs": {"json": {**USUAL, **odd}}} for odd in ODD),
        *({"structured_outputs": {}}, {"structured_outputs": {"json": {}}}),
        *({"bad_words": [" "]}, {"bad_words": ["x"] * 300}),
        {"response_format": json_format({"type": "string", "pattern": "("})},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "text"}, "structured_outputs": {"choice": ["a"]}},
        {"echo": True, "add_generation_prompt": False},
        *({"routed_experts_prompt_start": 2}, {"repetition_detection": {"max_pattern_size": 4}}),
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
    for name, right in (("f", "fits"), ("g", "no")):
        choice = {"type": "function", "function": {"name": name}}
        asked = {"messages": [USER], "tools": [TOOL], "tool_choice": choice}
        assert answer(grammar, asked) == right
    flat = {"type": "function", "name": "f", "parameters": {}}
    line = json.dumps({"input": [USER], "tools": [flat]}).encode()
    assert "not modelled" in Grammar(found).find_doubt(parse_line(line)[0])


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
    tokens = model.host.ask(CountTexts(asked), "counting")
    theirs = ["fits" if isinstance(one, int) else "no" for one in tokens]
    assert list(zip(turns, ours, strict=True)) == list(zip(turns, theirs, strict=True))


def test_an_earlier_calibration_knows_no_field() -> None:
    grammar = Grammar({})
    assert answer(grammar, {"messages": [USER], "max_tokens": 3}) == "fits"
    assert answer(grammar, {"messages": [USER], "temperature": 1}) == "unknown"


@pytest.mark.slow
@pytest.mark.parametrize("words", ["<image> a", "<image> <image>", "a", "<video>"])
def test_a_template_of_texts_names_no_more_items_than_there_are(lab, host, tmp_path, words) -> None:
    model = Lab(host, speaking(lab("OpenGVLab/InternVL2-2B").folder, tmp_path / "model", None))
    grammar = Grammar(model.host.ask(FindGrammar(("image",)), "asking"))
    picture = {"type": "image_url", "image_url": {"url": URL}}
    turn = {"role": "user", "content": [picture, {"type": "text", "text": words}]}
    ours = answer(grammar, {"messages": [turn]})
    (theirs,) = model.host.ask(CountTexts((ChatRequest([turn]).strip_media(),)), "counting")
    assert ours == ("fits" if isinstance(theirs, int) else "no"), theirs


IMAGE = {"type": "image", "source": {"type": "url", "url": URL}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


def result(content: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "1", "content": content}


ANTHROPIC: dict[str, Any] = {
    "model": "m",
    "max_tokens": 7,
    "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, WORDS],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": [WORDS, {**IMAGE, "source": {"type": "base64", "data": "aa"}}]},
        {"role": "assistant", "content": [THOUGHT, WORDS, {**CALL, "input": {"a": 1}}]},
        {"role": "user", "content": [WORDS, result([WORDS, IMAGE])]},
        {"role": "user", "content": [{**result("b"), "tool_use_id": "2"}]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, WORDS]},
        {"role": "system", "content": "inline"},
        USER,
    ],
}


# Prints the chats that vLLM makes of bodies, null for those that it rejects.
_CONVERT = """
import json, sys
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest as Request
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages as Serving

def chat(body):
    try:
        request = Request.model_validate(body)
    except ValueError:
        return None
    made = Serving.to_chat_completion_request(request, merge_inline_system=True)
    return made.model_dump(mode="json", exclude_none=True)

print(json.dumps([chat(body) for body in json.loads(sys.argv[1])]))
"""


def test_a_body_of_messages_is_the_chat_that_vllm_makes() -> None:
    kinds = ("document", "image_url", "search_result")
    turns = [[{"role": "user", "content": [WORDS, {"type": kind}]}] for kind in kinds]
    bodies = [{**ANTHROPIC, "messages": turn} for turn in turns]
    made, *others = answer_of("-c", _CONVERT, json.dumps([ANTHROPIC, *bodies]))
    assert others == [None] * 3
    for kind, body in zip(kinds, bodies, strict=True):
        with pytest.raises(BadRequest, match=f"/v1/messages takes no part of type {kind}"):
            parse_line(json.dumps({"url": "https://h/v1/messages", "body": body}).encode())
    ours, _ = parse_line(json.dumps(ANTHROPIC).encode())
    assert ours.messages == made["messages"]
    assert (ours.answer_tokens, ours.endpoint) == (made["max_tokens"], "/v1/messages")
    (tool,) = made["tools"]
    assert ours.fields["tools"][0]["function"].items() <= tool["function"].items()


# What people send to /v1/messages, and mistakes in it.
BLOCKS: list[object] = [
    *("", "a", 5, None, [], [WORDS], [WORDS, WORDS], [IMAGE], [WORDS, IMAGE], [IMAGE, WORDS]),
    *([result("b")], [result(None)], [result([WORDS, IMAGE])], [CALL], [WORDS, CALL]),
    *([{"type": "text"}], [{"type": "text", "text": 5}], [{"type": "text", "text": ""}]),
    *([{"type": "image"}], [{"type": "thinking", "thinking": "t"}, WORDS], ["a"], [{}]),
    [{"type": "document", "source": {"type": "text", "data": "a"}}],
]
SHAPES: dict[str, list[object]] = {
    "max_tokens": [1, 0, -1, "5", 2.5, None, "many"],
    "model": ["m", 5, None],
    "system": ["s", [WORDS], "", [], 5, [{"type": "text", "text": "x-anthropic-billing-header"}]],
    "temperature": [0, 1.5, 2.5, -1, "hot"],
    "top_p": [0.5, 0, 1, 2],
    "top_k": [-1, 0, 5, -2, 1.5],
    "stop_sequences": [[], ["a"], "a", [5], ["a"] * 100, [""]],
    "stream": [True, False, "maybe"],
    "metadata": [{"user_id": "u"}, "u"],
    "cache_salt": ["s", "", "s" * 2000],
    "tools": [[], [{"name": "f", "input_schema": {}}], [{"name": "f"}], [{"name": 5}], "f"],
    "tool_choice": [{"type": one} for one in ("none", "auto", "any", "tool", "other")],
    "thinking": [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 5}],
}


def test_a_body_of_messages_fits_only_where_vllm_makes_that_chat(found: dict[str, Any]) -> None:
    """And one of the usual fields is never left open."""
    base = {"model": "m", "max_tokens": 9, "messages": [USER]}
    roles = ("user", "assistant", "system", "tool")
    turns = [[USER, {"role": role, "content": one}] for role in roles for one in BLOCKS]
    bodies = [{**base, "messages": [*turn, USER]} for turn in turns]
    for name, values in SHAPES.items():
        bodies += [{**base, name: value} for value in values]
    bodies += [{n: v for n, v in base.items() if n != name} for name in base]
    grammar, answers = Grammar(found, tools=True), dict[str, int]()
    for body, made in zip(bodies, answer_of("-c", _CONVERT, json.dumps(bodies)), strict=True):
        said = answer(grammar, {"url": "/v1/messages", "body": body})
        answers[said] = answers.get(said, 0) + 1
        if made is None:
            assert said != "fits", body
        if said == "fits":
            ours, _ = parse_line(json.dumps({"url": "/v1/messages", "body": body}).encode())
            assert ours.messages == made["messages"], body
            mine = {**ours.others, **ours.fields}
            assert mine.get("tools", []) == made.get("tools", []), body
            # vLLM reads the number in a text.
            for name in mine.keys() & {"stop", "max_tokens", "top_k"}:
                assert str(mine[name]) == str(made[name]), body
    assert answers["fits"] > 50
    assert answers["unknown"] < 30
