"""What a body may bring beside media and words: fields, parts, messages and tools, good and bad.

In a template "<NAME>" is the URL of the pool's medium of that name, and "<NAME|base64>" its bytes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from judging.pool import Pool

Fields = Mapping[str, Any]
_MEDIUM = re.compile(r"<(?P<name>[\w.-]+)(?P<inline>\|base64)?>")
# What parts name, by its kind.
PART_MEDIA = {"image": "image-224x224.png", "video": "video-h264.mp4", "audio": "audio-1s.wav"}
_CALL = {"name": "weather", "arguments": '{"place": "Oslo"}'}
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
# As pydantic writes them.
_USUAL = {
    "$defs": {"C": {"enum": ["a", "b"], "title": "C", "type": "string"}},
    "properties": {
        "c": {"$ref": "#/$defs/C"},
        "n": {"maximum": 9, "minimum": 0, "title": "N", "type": "integer"},
        "s": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "S"},
        "l": {"items": {"$ref": "#/$defs/C"}, "maxItems": 3, "title": "L", "type": "array"},
    },
    "required": ["c", "n"],
    "title": "M",
    "type": "object",
}
_SET = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}

# Tried with every field: a value of each type, some of another's, and some far beyond.
ANY: Sequence[Any] = (
    *(None, True, False, 0, 1, 2, 7, -1, 0.5, 1.0, -0.5, "7", "7.0", "0.5", "true", "yes", ""),
    *("a", 7.0, 7.5, 1 << 31, 1 << 40, 1 << 64, -(1 << 64), 1e300, [], [1], ["a"], [""], [None]),
    *([1.5], {}, {"a": 1}, {"a": None}, {"1": 1}, [{}], [[]]),
)


def _each(name: str, *values: Any, **beside: Any) -> Iterator[Fields]:
    yield from ({name: value, **beside} for value in values)


# What only some fields have a meaning for. Each is tried as it stands.
SOME: Sequence[Fields] = (
    *_each("temperature", 0, 1e-3, 2, 2.0001, -0.0001, "1", "hot", "nan", "inf"),
    *_each("top_p", 1, 1e-9, 0, 1.0001, "0.5"),
    *_each("min_p", 0, 1, 1.0001, -0.0001),
    *_each("top_k", 0, -1, -2, 1, 5.0, 5.5, "5", 1 << 31, 1 << 63),
    *_each("frequency_penalty", -2, 2, 2.0001, -2.0001, "2"),
    *_each("presence_penalty", -2, 2, 2.0001, -2.0001, "2"),
    *_each("repetition_penalty", 1e-6, 0, -1, 2, 1e9),
    *_each("length_penalty", 0, -5, "1", "x"),
    *_each("seed", -1, 0, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, "5", 5.5),
    *_each("priority", 0, 1, -1, "0", 1 << 63),
    *_each("n", 1, 2, 3, "2", 2.0, 0, -1, 1 << 20),
    *_each("n", 2, temperature=0),
    *_each("n", 2, stream=True),
    *_each("n", 2, use_beam_search=True),
    *_each("stop", "x", ["x", "y"], [], "", [""], [7], ["x"] * 40, None),
    *_each("stop_token_ids", [5], [], [-1], [1 << 20], ["5"], [5.0], "5", [1 << 40]),
    *_each("allowed_token_ids", [5], [], [-1], [1 << 20], ["5"], None),
    *_each("logit_bias", {"5": 1}, {"5": 200}, {"a": 1}, {"-1": 1}, {"1048576": 1}, {"5": "1"}, {}),
    *_each("bad_words", ["x"], [], [""], [" "], "x", [7], ["x"] * 300),
    *_each("logprobs", True, False, "true", 1, 2, "maybe"),
    *_each("top_logprobs", 0, 1, 20, 21, -1, "1", 1.0, 1.5, logprobs=True),
    *_each("top_logprobs", 1, logprobs=False),
    *_each("prompt_logprobs", 0, 1, 20, 21, -1, -2, "1", 1.0, 1.5, True),
    *_each("prompt_logprobs", 0, 1, -1, stream=True),
    *_each("logprob_token_ids", [5], [], [-1], [1 << 20], list(range(129)), logprobs=True),
    *_each("logprob_token_ids", [5]),
    *_each("logprob_token_ids", [5], logprobs=True, top_logprobs=1),
    *_each("logprob_token_ids", [5], logprobs=True, use_beam_search=True),
    *_each("stream", True, "true", "false", 0, 1, 2, None),
    *_each("stream_options", {"include_usage": True}, {}, None, {"x": 1}, {"include_usage": 2}),
    *_each("stream_options", {"include_usage": True}, {"include_usage": "x"}, {}, 7, stream=True),
    *_each("stream_interval", 1, 0, 5, "3", -1),
    *_each("stream_interval", 5, stream=True),
    *_each("use_beam_search", True, False),
    *_each("ignore_eos", True, "on"),
    *_each("min_tokens", 0, 1, -1, "1", 1.0, 2, 1 << 40),
    *_each("max_tokens", 1, 0, -1, "3", 3.0, 3.5, 1 << 40, None, "x"),
    *_each("max_completion_tokens", 1, 0, -1, "3", 3.0, 3.5, 1 << 40, None),
    *_each("max_completion_tokens", 2, max_tokens=0),
    *_each("max_completion_tokens", 0, max_tokens=2),
    *_each("truncate_prompt_tokens", -1, 0, 1, 5, 4096, 1 << 40, -2, "5", 5.0, None),
    *_each("truncation_side", "left", "right", "top", None),
    *_each("truncation_side", "left", "right", truncate_prompt_tokens=5),
    *_each("thinking_token_budget", 0, 5, -1, -2, None, "5", True),
    *_each("reasoning_effort", "none", "minimal", "low", "high", "max", "hardly", None, 7),
    *_each("include_reasoning", True, False),
    *_each("parallel_tool_calls", True, False, None, "x"),
    *_each("response_format", {"type": "text"}, {"type": "json_object"}, {"type": "xml"}, {}, None),
    *_each(
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": _USUAL}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": _SET}},
        {"type": "json_schema", "json_schema": {"name": "a"}},
        {"type": "json_schema", "json_schema": {"schema": _SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}},
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema"},
        {"type": "structural_tag", "structures": [], "triggers": []},
        {"type": "structural_tag", "format": {"type": "any_text"}},
        {"type": "structural_tag"},
        "json_object",
    ),
    *_each(
        "structured_outputs",
        *({"json": _SCHEMA}, {"json": json.dumps(_SCHEMA)}, {"json": ""}, {"json": "{"}),
        *({"json": _USUAL}, {"json": _SET}, {"json": {**_USUAL, "$defs": {}}}),
        *({"regex": r"\d{3}-(a|b)+"}, {"regex": "a{3,1}"}, {"regex": "^(?=a)b$"}),
        *({"regex": "a+"}, {"regex": "("}, {"regex": ""}, {"regex": "a\x00"}, {"regex": 7}),
        *({"choice": ["a", "b"]}, {"choice": []}, {"choice": [1]}, {"choice": "a"}),
        *({"grammar": 'root ::= "a"'}, {"grammar": "("}, {"grammar": " "}),
        *({"json_object": True}, {"json_object": False}, {}, None, {"foo": 1}, {"backend": "x"}),
        *({"json": _SCHEMA, "regex": "a"}, {"choice": ["a"], "grammar": 'root ::= "a"'}),
        *({"structural_tag": "{}"}, {"structural_tag": ""}, {"whitespace_pattern": " "}),
        {"json": {"type": "string"}, "disable_any_whitespace": True},
    ),
    *_each("guided_json", _SCHEMA),
    *_each("echo", True, False),
    *_each("add_generation_prompt", False, True, "no"),
    *_each("continue_final_message", True),
    *_each("continue_final_message", True, add_generation_prompt=False),
    *_each("continue_final_message", True, add_generation_prompt=True),
    *_each("add_special_tokens", True, False),
    *_each("documents", [], [{"title": "a", "text": "b"}], [{"title": 7}], None),
    *_each("chat_template", "{{ messages }}", "", None, 7),
    *_each("chat_template_kwargs", {}, {"enable_thinking": False}, {"tokenize": True}, None),
    *_each("chat_template_kwargs", {"chat_template": "x"}, {"add_vision_id": True}, {"tools": []}),
    *_each("mm_processor_kwargs", {}, {"max_pixels": 1 << 16}, None, 7),
    *_each("media_io_kwargs", {}, {"video": {"fps": 1}}, {"video": {}}, None, {"video": 7}),
    *_each("request_id", "a", "", None, 7, "x" * 300),
    *_each("session_id", "a", "", None, 7),
    *_each("cache_salt", "a", "", None, 7, "x" * 1024, "x" * 1025, "\u0000"),
    *_each("mm_payload", "tensors", "none", "all", None),
    *_each("return_mm_kwargs", True, False),
    *_each("return_token_ids", True, "x"),
    *_each("return_tokens_as_token_ids", True, logprobs=True),
    *_each("return_token_offsets", True),
    *_each("return_prompt_text", True),
    *_each("routed_experts_prompt_start", 0, 1, -1),
    *_each("kv_transfer_params", {}, {"a": 1}, {"prompt_token_ids": [5, 6]}, None, 7),
    *_each("kv_transfer_params", {"prompt_token_ids": []}, {"prompt_token_ids": ["a"]}),
    *_each("ec_transfer_params", {}, {"a": 1}, None),
    *_each("vllm_xargs", {}, {"a": 1}, {"a": "x"}, {"a": [1, "x"]}, {"a": {}}, {"a": 1 << 64}),
    *_each("watermarking", True, False, None),
    *_each("spaces_between_special_tokens", False),
    *_each("skip_special_tokens", False),
    *_each("include_stop_str_in_output", True),
    *_each("include_stop_str_in_output", True, stop=["x"]),
    *_each(
        "repetition_detection",
        *({}, {"max_pattern_size": 4, "min_count": 3}, {"max_pattern_size": 4}, None),
        *({"min_pattern_size": 5, "max_pattern_size": 4, "min_count": 2}, {"min_count": -1}),
    ),
    *_each("user", "a", None, 7),
    *_each("model", None, 7),
    *_each("messages", None, [], "a", {}, [7], [{}], [{"role": "user"}]),
    *_each("best_of", 2),
    *_each("functions", [{"name": "f"}]),
    *_each("function_call", "auto"),
    *_each("service_tier", "auto", None),
    *_each("store", True),
    *_each("metadata", {"a": "b"}),
    *_each("modalities", ["text"]),
    *_each("audio", {"voice": "alloy", "format": "wav"}),
    *_each("prediction", {"type": "content", "content": "a"}),
    *_each("nothing_known", 7),
)

# How tools may be sent, and not.
TOOLS: Mapping[str, Fields] = {
    "without a choice": {"tools": [_TOOL]},
    "none": {"tools": [_TOOL], "tool_choice": "none"},
    "auto": {"tools": [_TOOL], "tool_choice": "auto"},
    "required": {"tools": [_TOOL], "tool_choice": "required"},
    "null": {"tools": [_TOOL], "tool_choice": None},
    "named": {
        "tools": [_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    },
    "named otherwise": {
        "tools": [_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "rain"}},
    },
    "named without a function": {"tools": [_TOOL], "tool_choice": {"type": "function"}},
    "any": {"tools": [_TOOL], "tool_choice": "any"},
    "choice alone": {"tool_choice": "auto"},
    "none alone": {"tool_choice": "none"},
    "null alone": {"tool_choice": None},
    "empty": {"tools": []},
    "empty, none": {"tools": [], "tool_choice": "none"},
    "null tools": {"tools": None},
    "null tools, auto": {"tools": None, "tool_choice": "auto"},
    "no type": {"tools": [{"function": {"name": "f"}}], "tool_choice": "none"},
    "another type": {"tools": [{**_TOOL, "type": "custom"}], "tool_choice": "none"},
    "no function": {"tools": [{"type": "function"}], "tool_choice": "none"},
    "no name": {"tools": [{"type": "function", "function": {}}], "tool_choice": "none"},
    "strict": {
        "tools": [{"type": "function", "function": {"name": "f", "strict": True}}],
        "tool_choice": "none",
    },
    "more fields": {
        "tools": [{**_TOOL, "defer_loading": True, "x": {"y": "z" * 50}}],
        "tool_choice": "none",
    },
    "parameters of no object": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}],
        "tool_choice": "none",
    },
    "other scripts": {
        "tools": [{"type": "function", "function": {"name": "f", "description": "été <字> & \n"}}],
        "tool_choice": "none",
    },
    "no object": {"tools": ["weather"], "tool_choice": "none"},
}


def _parts() -> Iterator[tuple[str, Any]]:
    for kind, name in PART_MEDIA.items():
        field, url = f"{kind}_url", f"<{name}>"
        named = {"type": field, field: {"url": url}}
        yield f"{field}", named
        yield f"{field} untyped", {field: {"url": url}}
        yield f"{field} untyped, text", {field: url}
        yield f"{field} as a text", {"type": field, field: url}
        yield f"{field} null", {"type": field, field: None}
        yield f"{field} missing", {"type": field}
        yield f"{field} empty", {"type": field, field: {"url": ""}}
        yield f"{field} without url", {"type": field, field: {}}
        yield f"{field} of a number", {"type": field, field: {"url": 7}}
        yield f"{field} of a list", {"type": field, field: [url]}
        yield f"{field} with detail", {"type": field, field: {"url": url, "detail": "low"}}
        yield f"{field} with odd detail", {"type": field, field: {"url": url, "detail": "x"}}
        yield f"{field} with more", {**named, "foo": "bar"}
        yield f"{field} and text", {**named, "text": "a"}
        yield f"{field} with uuid", {**named, "uuid": f"{kind}-1"}
        yield f"{field} of uuid alone", {"type": field, field: None, "uuid": f"{kind}-1"}
        yield f"{field} of uuid, text", {"type": field, field: url, "uuid": f"{kind}-1"}
        yield f"{field} with null uuid", {**named, "uuid": None}
        yield f"{kind} of OpenAI's", {"type": kind, kind: url}
        embeds = f"{kind}_embeds"
        yield embeds, {"type": embeds, embeds: "AAAA"}
        yield f"{embeds} untyped", {embeds: "AAAA"}
        yield f"{embeds} null", {"type": embeds, embeds: None, "uuid": "7"}
    yield (
        "image_url of a sound",
        {"type": "image_url", "image_url": {"url": f"<{PART_MEDIA['audio']}>"}},
    )
    yield (
        "video_url of an image",
        {"type": "video_url", "video_url": {"url": f"<{PART_MEDIA['image']}>"}},
    )
    sound = f"<{PART_MEDIA['audio']}|base64>"
    for name, given in (
        ("input_audio", {"data": sound, "format": "wav"}),
        ("input_audio, no format", {"data": sound}),
        ("input_audio, another format", {"data": sound, "format": "mp3"}),
        ("input_audio, odd format", {"data": sound, "format": 7}),
        ("input_audio, no data", {"format": "wav"}),
        ("input_audio, empty", {"data": "", "format": "wav"}),
        ("input_audio, no base64", {"data": "%%%", "format": "wav"}),
        ("input_audio null", None),
        ("input_audio of a text", sound),
    ):
        yield name, {"type": "input_audio", "input_audio": given}
    yield "input_audio untyped", {"input_audio": {"data": sound, "format": "wav"}}
    yield "input_audio missing", {"type": "input_audio"}
    image = f"<{PART_MEDIA['image']}>"
    yield "input_image", {"type": "input_image", "image_url": image, "detail": "auto"}
    yield "input_image, no detail", {"type": "input_image", "image_url": image}
    yield "input_image of an object", {"type": "input_image", "image_url": {"url": image}}
    yield "input_image, no image", {"type": "input_image", "detail": "auto"}
    yield "input_image of a file", {"type": "input_image", "file_id": "f", "detail": "auto"}
    yield "image_pil", {"type": "image_pil", "image_pil": "AAAA"}
    yield "image_pil null", {"type": "image_pil", "image_pil": None}
    yield "image_pil untyped", {"image_pil": None}
    yield "prompt_embeds", {"type": "prompt_embeds", "data": "AAAA"}
    yield "prompt_embeds untyped", {"prompt_embeds": "AAAA", "data": "AAAA"}
    for kind in ("text", "input_text", "output_text", "refusal", "thinking"):
        field = kind if kind in ("refusal", "thinking") else "text"
        yield kind, {"type": kind, field: "a"}
        yield f"{kind} empty", {"type": kind, field: ""}
        yield f"{kind} null", {"type": kind, field: None}
        yield f"{kind} missing", {"type": kind}
        yield f"{kind} of a number", {"type": kind, field: 7}
        yield f"{kind} of a list", {"type": kind, field: ["a"]}
        yield f"{kind} with more", {"type": kind, field: "a", "foo": "bar"}
        yield f"{kind} with uuid", {"type": kind, field: "a", "uuid": "t"}
        yield f"{kind} with annotations", {"type": kind, field: "a", "annotations": []}
        yield f"{kind} cached", {"type": kind, field: "a", "cache_control": {"type": "ephemeral"}}
    yield "thinking, closed", {"type": "thinking", "thinking": "a", "closed": True}
    yield "text untyped", {"text": "a"}
    yield "refusal in text", {"type": "refusal", "text": "a"}
    yield "tool_reference", {"type": "tool_reference", "name": "weather"}
    yield "tool_reference untyped", {"tool_reference": "weather", "name": "weather"}
    yield "tool_reference missing", {"type": "tool_reference"}
    yield "file", {"type": "file", "file": {"file_id": "f"}}
    yield "unknown type", {"type": "foo", "foo": "bar"}
    yield "empty type", {"type": "", "text": "a"}
    yield "null type", {"type": None, "text": "a"}
    yield "type of a number", {"type": 7, "text": "a"}
    yield "type of a list", {"type": ["a"], "text": "a"}
    yield "tool_use", {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    yield "source of Anthropic's", {"type": "image", "source": {"type": "url", "url": image}}
    bare: Sequence[Any] = ("a", "", 7, None, [], {}, ["a"])
    yield from ((f"bare {value!r}", value) for value in bare)


PARTS: Mapping[str, Any] = dict(_parts())


def _turn(role: str, content: Any = "a", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _called(*calls: Any, content: str | None = None) -> list[dict[str, Any]]:
    return [_turn("user"), _turn("assistant", content, tool_calls=list(calls))]


def _call(**more: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": _CALL, **more}


def _arguments(value: Any) -> dict[str, Any]:
    return _call(function={"name": "weather", "arguments": value})


_CONTENTS: Sequence[Any] = (None, "", [], [{"type": "text", "text": "a"}], ["a"], 7, {})
_ANSWER = _turn("tool", "rain", tool_call_id="1")
_PICTURE = [{"type": "text", "text": "a"}, PARTS["image_url"]]

# Messages before the request's own.
MESSAGES: Mapping[str, Sequence[Any]] = {
    **{f"{role} alone": [_turn(role)] for role in ("system", "developer", "user", "assistant")},
    **{
        f"{role} of {content!r}": [_turn(role, content)]
        for role in ("system", "user", "assistant", "tool", "developer", "ipython")
        for content in _CONTENTS
    },
    **{f"{role} without content": [{"role": role}] for role in ("system", "user", "assistant")},
    "an own role": [_turn("ipython")],
    "empty role": [_turn("")],
    "no role": [{"content": "a"}],
    "role of a number": [{"role": 7, "content": "a"}],
    "role of a list": [{"role": ["user"], "content": "a"}],
    "function": [_turn("function", name="f")],
    "name": [_turn("user", name="bob")],
    "name of a number": [_turn("user", name=7)],
    "more fields": [_turn("user", foo="bar", weight=7)],
    "task": [_turn("user", task="x")],
    "two systems": [_turn("system"), _turn("system")],
    "system late": [_turn("user"), _turn("system")],
    "system with a picture": [_turn("system", _PICTURE)],
    "assistant with a picture": [_turn("user"), _turn("assistant", _PICTURE)],
    "tool with a picture": [*_called(_call()), _turn("tool", _PICTURE, tool_call_id="1")],
    "assistant first": [_turn("assistant"), _turn("user"), _turn("assistant")],
    "call": [*_called(_call()), _ANSWER],
    "calls": [*_called(_call(), _call(id="2")), _ANSWER, {**_ANSWER, "tool_call_id": "2"}],
    "call without answer": _called(_call()),
    "call with words": [*_called(_call(), content="so"), _ANSWER],
    "call without id": [*_called({"type": "function", "function": _CALL}), _ANSWER],
    "call without type": [*_called({"id": "1", "function": _CALL}), _ANSWER],
    "call of type custom": [
        *_called({"id": "1", "type": "custom", "custom": {"name": "f", "input": "x"}}),
        _ANSWER,
    ],
    "call without function": [*_called({"id": "1", "type": "function"}), _ANSWER],
    "call without name": [*_called(_call(function={"arguments": "{}"})), _ANSWER],
    "call without arguments": [*_called(_call(function={"name": "weather"})), _ANSWER],
    "arguments of an object": [*_called(_arguments({"place": "Oslo"})), _ANSWER],
    "arguments of a list": [*_called(_arguments("[1]")), _ANSWER],
    "arguments cut": [*_called(_arguments('{"place": ')), _ANSWER],
    "arguments empty": [*_called(_arguments("")), _ANSWER],
    "arguments null": [*_called(_arguments(None)), _ANSWER],
    "arguments deep": [*_called(_arguments('{"a": {"b": ["\\u00e9", "<>", 1.50]}}')), _ANSWER],
    "call no object": [*_called("weather"), _ANSWER],
    "no calls": [_turn("user"), _turn("assistant", "a", tool_calls=[])],
    "null calls": [_turn("user"), _turn("assistant", "a", tool_calls=None)],
    "calls of the user": [_turn("user", tool_calls=[_call()])],
    "calls no list": [_turn("user"), _turn("assistant", "a", tool_calls={"a": 1})],
    "answer without id": [*_called(_call()), _turn("tool", "rain")],
    "answer with name": [*_called(_call()), {**_ANSWER, "name": "weather"}],
    "answer of parts": [
        *_called(_call()),
        _turn("tool", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
    ],
    "answer of parts with id": [
        *_called(_call()),
        _turn("tool", [{"type": "text", "text": "a"}] * 2, tool_call_id="1"),
    ],
    "answer alone": [_ANSWER],
    "reasoning": [_turn("user"), _turn("assistant", reasoning="so")],
    "reasoning_content": [_turn("user"), _turn("assistant", reasoning_content="so")],
    "null reasoning": [_turn("user"), _turn("assistant", reasoning=None)],
    "refusal": [_turn("user"), _turn("assistant", None, refusal="no")],
    "null refusal": [_turn("user"), _turn("assistant", refusal=None)],
    "as the API answers": [
        _turn("user"),
        _turn("assistant", refusal=None, tool_calls=None, function_call=None, audio=None),
    ],
    "audio of an answer": [_turn("user"), _turn("assistant", None, audio={"id": "x"})],
    "function_call": [_turn("user"), _turn("assistant", None, function_call=_CALL)],
    "tools of the developer": [_turn("developer", tools=[_TOOL])],
    "thought in tags": [_turn("user"), _turn("assistant", "<think>a</think>b")],
    "no object": ["a"],
    "harmony": [{"author": {"role": "user"}, "content": [{"type": "text", "text": "a"}]}],
}

# What templates and processors put for items; in a text vLLM may take them for one.
MARKS: Sequence[str] = (
    *("<image>", "<IMG_CONTEXT>", "<img>", "<|image_pad|>", "<|vision_start|><|image_pad|>"),
    *("<|video_pad|>", "<|AUDIO|>", "<|audio_bos|><|AUDIO|><|audio_eos|>", "<start_of_image>"),
    *("<image_soft_token>", "<|im_start|>", "<|im_end|>", "<audio>", "<##IMAGE##>", "[IMG]"),
    *("<video>", "<|VIDEO|>", "<|IMAGE|>", "<bos>", "<eos>", "</s>", "{{ messages }}", "<|image|>"),
)


def each_field(names: Sequence[str], seed: int) -> Iterator[Fields]:
    """Endless: in each round one more value of every field, `SOME` of its own before `ANY`."""
    random = Random(seed)
    of: dict[str, list[Fields]] = {name: [] for name in names}
    for one in SOME:
        of.setdefault(next(iter(one)), []).append(one)
    for name, own in of.items():
        random.shuffle(own)
        if name in names:
            own += [{name: value} for value in random.sample(ANY, len(ANY))]
        # Both in turn: half of what is tried has another type.
        own[:] = [one for pair in zip(own, reversed(own), strict=True) for one in pair][: len(own)]
    for number in range(max(map(len, of.values()))):
        order = sorted(of)
        random.shuffle(order)
        yield from (of[name][number] for name in order if number < len(of[name]))


def filled(template: Any, pool: Pool) -> Any:
    """With media in place of their names."""
    if isinstance(template, str) and (found := _MEDIUM.fullmatch(template)) is not None:
        if found["name"] not in pool:
            return template
        path = pool[found["name"]].path
        return base64.b64encode(path.read_bytes()).decode() if found["inline"] else path.as_uri()
    if isinstance(template, Mapping):
        return {name: filled(value, pool) for name, value in template.items()}
    return [filled(one, pool) for one in template] if isinstance(template, list) else template
