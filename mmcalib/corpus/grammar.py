"""Chat requests against the grammar that `mmcalib run` took from vLLM; needs no vLLM."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmcalib.corpus.chat import TEXT_FIELDS, ChatRequest
from mmcalib.corpus.lines import OPENAI_ROLES, BadRequest, UnknownPart

# What bears on no more than the answer, once the schema takes it.
_JUDGED = frozenset(
    (
        *("messages", "model", "user", "stream", "stream_options", "seed", "stop", "temperature"),
        *("top_p", "top_k", "min_p", "logprobs", "top_logprobs", "prompt_logprobs"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty"),
        *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "request_id"),
        *("include_stop_str_in_output", "include_reasoning", "parallel_tool_calls", "session_id"),
        *("return_tokens_as_token_ids", "return_token_ids", "return_prompt_text", "cache_salt"),
        *("mm_payload", "return_mm_kwargs", "return_token_offsets", "stream_interval", "n"),
        *("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "truncation_side"),
        # Without a scheduler or a watermark of its kind vLLM passes it over.
        *("priority", "watermarking"),
        # Empty ones: `parse_line` refuses others.
        *("mm_processor_kwargs", "media_io_kwargs"),
    )
)
# Nothing, where they are empty.
_GIVEN_ON = ("logit_bias", "bad_words", "kv_transfer_params", "ec_transfer_params", "vllm_xargs")
# JSON schemas that every backend of vLLM makes a grammar of.
_SIMPLE_SCHEMA: Mapping[str, Any] = {
    "properties": {
        "type": {"enum": ["object", "array", "string", "integer", "number", "boolean", "null"]},
        "properties": {"additionalProperties": {"$ref": "#/$defs/simple"}},
        "items": {"$ref": "#/$defs/simple"},
        "required": {"items": {"type": "string"}},
        "enum": {"items": {"type": "string"}, "minItems": 1},
        "additionalProperties": {"type": "boolean"},
        **{key: {"type": "string"} for key in ("title", "description")},
    },
    "required": ["type"],
    "additionalProperties": False,
}


def _holding(*names: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties, *names]}


def _between(least: int, most: int = 1000) -> dict[str, Any]:
    return {"minimum": least, "maximum": most}


_SIZES = ("min_pattern_size", "max_pattern_size")
# Values of other fields that are known to bear on no more than the answer.
_KNOWN_VALUES: Mapping[str, Any] = {
    "$defs": {"simple": _SIMPLE_SCHEMA},
    "not": {"required": ["response_format", "structured_outputs"]},
    "properties": {
        "response_format": {
            "anyOf": [
                _holding(type={"enum": ["text", "json_object"]}),
                _holding(
                    type={"const": "json_schema"},
                    json_schema=_holding("name", schema={"$ref": "#/$defs/simple"}),
                ),
            ]
        },
        "structured_outputs": {
            "maxProperties": 1,
            "anyOf": [
                _holding(json={"$ref": "#/$defs/simple"}),
                _holding(json_object={"const": True}),
                _holding(choice={"minItems": 1, "items": {"minLength": 1}}),
            ],
        },
        # Up to the length of the prompt.
        "routed_experts_prompt_start": _between(0, 1),
        # `RepetitionDetectionParams.__post_init__` (vllm/sampling_params.py:186, 0.32).
        "repetition_detection": {
            "properties": {"min_pattern_size": _between(0, 1), "min_count": _between(-1)},
            "anyOf": [
                {"properties": dict.fromkeys(_SIZES, _between(0, 0))},
                _holding(max_pattern_size=_between(1), min_count=_between(2)),
            ],
        },
    },
}
# Without a schema nothing is known of their values.
_ANY_VALUE = frozenset(("messages", "model", "user"))
# In what stands for an item, such as <|vision_start|><|image_pad|><|vision_end|>.
_TOKEN = re.compile(r"<[^<>]+>|\[[^][]+\]")
# pydantic takes other types for these than JSON Schema does: "7" and 7.0 for an int, say.
_LAX: Mapping[str, TypeAdapter[Any]] = {
    "integer": TypeAdapter(int),
    "number": TypeAdapter(float),
    "boolean": TypeAdapter(bool),
}
_NUMBERS = _LAX["integer"], _LAX["number"]
_LONGEST = 80


class Grammar:
    """`found` as `releases.grammar.request_grammar` wrote it, empty of an earlier calibration.
    With `tools` the server parses calls of tools, with `embeds` it takes embeddings.
    """

    def __init__(
        self, found: Mapping[str, Any], *, tools: bool = False, embeds: bool = False
    ) -> None:
        self._found, self._tools = found, tools or bool(found.get("tools"))
        self._embeds, self._is_string = embeds, found.get("content") == "string"

    def doubt(self, request: ChatRequest) -> str:
        """What of it nobody modelled, empty where nothing. Raises `BadRequest` for what vLLM
        refuses.
        """
        fields = {**request.fields, **request.others}
        chosen = fields.get("tool_choice", "auto") not in (None, "none")
        if fields.get("tools") and chosen and not self._tools:
            flags = "--enable-auto-tool-choice and --tool-call-parser"
            raise BadRequest(f"it has tools, which vLLM refuses without {flags}")
        doubts = self._doubts_of_parts(request)
        # A server of `prompt_embeds` looks for their mark in each text.
        if self._embeds and not ChatRequest(request.messages).is_plain:
            doubts.append("a text of another type is not modelled")
        if not self._found:
            names = fields.keys() - request.fields.keys() - _ANY_VALUE
            doubts = [*doubts, *(f"{name} is not known to this calibration" for name in names)]
            return min(doubts, default="")
        body = {**fields, "messages": request.messages}
        # A chat request only after vLLM itself made it one.
        if not request.endpoint:
            self._validate(self._body, body, "")
        for message in () if request.endpoint else request.messages:
            self._validate_parts(message)
        schema = self._found["schema"]["properties"]
        valued = fields.keys() & _KNOWN_VALUES["properties"].keys()
        held = {name: fields[name] for name in valued if fields[name] is not None}
        # A template gets the fields of a template alone; what is in code may get any.
        judged = "content" in self._found and self._values.is_valid(held)
        known = _JUDGED | request.fields.keys() | (held.keys() if judged else set())
        # The last message is answered with where the answer has its role, and must be texts
        # (vllm/entrypoints/openai/chat_completion/serving.py:1132, 0.32).
        if fields.get("echo") and not fields.get("stream"):
            known |= {"echo"} if request.is_plain and not request.items() else set()
        for name in sorted(schema.keys() & fields.keys() - known):
            nothing = name in _GIVEN_ON and not fields[name]
            if not nothing and fields[name] not in (None, schema[name].get("default")):
                doubts.append(f"{name} is not modelled")
        if request.endpoint:
            doubts.append(f"other fields of a body of {request.endpoint} are not modelled")
        return next(iter(doubts), "")

    def judge(self, unread: UnknownPart) -> BadRequest:
        """The same of a part that cannot be read: whether vLLM knows its type."""
        if not self._embeds and str(unread.kind).endswith("_embeds"):
            return BadRequest(f"{unread.kind}, which vLLM refuses without a flag for embeddings")
        if not self._found or unread.kind in self._found["parts"]:
            return unread
        return BadRequest(f"a part of type {unread.kind}, which vLLM does not know")

    def _doubts_of_parts(self, request: ChatRequest) -> list[str]:
        held = "" if self._is_string else "".join(self._found.get("placeholders", {}).values())
        words = request.text()
        return [
            f"{text} in a text: vLLM may take it for an item"
            for text in dict.fromkeys(_TOKEN.findall(held))
            if text in words
        ]

    def _validate_parts(self, message: Mapping[str, Any]) -> None:
        content = message.get("content")
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, Mapping)]
            for part in parts:
                self._validate_part(part)
            # pydantic reads content of OpenAI's own types when it is used, and prefers vLLM's type
            # by the number of fields that it knows: with none, OpenAI's is meant (smart mode).
            ours = message["role"] in OPENAI_ROLES or {"tool_call_id"} <= message.keys()
            each = itertools.product(self._members, parts)
            known = any(p.keys() & names and one.is_valid(p) for (one, names), p in each)
            if content and ours and not known:
                raise BadRequest("content of parts of which vLLM knows none without another")
        for call in message.get("tool_calls") or ():
            if isinstance(call, Mapping) and call.get("type", "function") != "function":
                raise BadRequest("tool_calls of another type than function, which vLLM refuses")
        if self._is_string and isinstance(content, str | list):
            self._refuse_placeholders(ChatRequest([dict(message)]))

    def _refuse_placeholders(self, turn: ChatRequest) -> None:
        """As `_get_full_multimodal_text_prompt` (vllm/renderers/chat_utils.py, 0.32) does it."""
        held, words = self._found.get("placeholders", {}), turn.text()
        for modality, items in turn.items().items():
            text = held.get(modality)
            if text and words.count(text) > items:
                raise BadRequest(f"more {text} in a text than the message has {modality} items")

    def _validate_part(self, part: Mapping[str, Any]) -> None:
        kind = part.get("type")
        if kind is None or part.get("uuid") is not None:
            if not part.keys() & (self._parts.keys() - TEXT_FIELDS.keys()):
                raise BadRequest("a part with a uuid or without a type, of no medium")
            return
        if kind not in self._parts:
            raise BadRequest(f"a part of type {kind}, which vLLM does not know")
        self._validate(self._parts[kind], part, f"{kind}.")

    def _validate(self, validator: Any, value: object, where: str) -> None:
        from jsonschema.exceptions import best_match

        error = best_match(validator.iter_errors(value))
        if error is not None:
            path = ".".join(map(str, error.absolute_path))
            whole = repr(error.instance)
            said = error.message if len(whole) < _LONGEST else error.message.replace(whole, "it")
            words = " ".join(said.split())[:_LONGEST]
            raise BadRequest(f"vLLM refuses {where}{path or 'its fields'}: {words}")

    @cached_property
    def _values(self) -> Any:
        return _validator(_KNOWN_VALUES)

    @cached_property
    def _body(self) -> Any:
        return _validator(self._found["schema"])

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return {kind: _validator(schema) for kind, schema in self._found["parts"].items()}

    @cached_property
    def _members(self) -> list[tuple[Any, set[str]]]:
        """The types of parts in vLLM's own message, and the fields that each knows."""
        defs = self._found["schema"]["$defs"]
        content = defs["CustomChatCompletionMessageParam"]["properties"]["content"]
        listed = next(one for one in content["anyOf"] if one.get("type") == "array")
        names = [
            one["$ref"].rpartition("/")[2] for one in listed["items"]["anyOf"] if "$ref" in one
        ]
        return [
            (_validator({**defs[name], "$defs": defs}), set(defs[name].get("properties", ())))
            for name in names
        ]


def _validator(schema: Mapping[str, Any]) -> Any:
    from jsonschema import Draft202012Validator, validators

    checker = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {kind: lambda _, value, to=to: _lax(to, value) is not None for kind, to in _LAX.items()}
    )
    bounds = {name: _bound(name, beyond) for name, beyond in _BEYOND.items()}
    return validators.extend(Draft202012Validator, bounds, type_checker=checker)(schema)


_BEYOND: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": operator.lt,
    "exclusiveMinimum": operator.le,
    "maximum": operator.gt,
}


def _bound(name: str, beyond: Callable[[float, float], bool]) -> Any:
    def check(_: Any, limit: float | str, value: object, schema: Any) -> Iterator[Any]:
        from jsonschema import ValidationError as Invalid

        # An int as such: a float is not exact above 2**53.
        number = next((n for to in _NUMBERS if (n := _lax(to, value)) is not None), None)
        # What is too large for a number of a calibration is a text there.
        most = int(limit) if isinstance(limit, str) else limit
        endless = isinstance(number, float) and not math.isfinite(number)
        if endless or (number is not None and beyond(number, most)):
            yield Invalid(f"{value!r} is beyond the {name} of {limit}")

    return check


def _lax(adapter: TypeAdapter[Any], value: object) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return None
