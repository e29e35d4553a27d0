"""Check chat requests against the grammar that `mmcalib run` took from vLLM; needs no vLLM."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from mmcalib.corpus.chat import TEXT_FIELDS, ChatRequest, medium_of, read_as
from mmcalib.corpus.lines import MESSAGES_FIELDS, OPENAI_ROLES, BadRequest, UnknownPart

# Fields that affect only the answer, if the schema accepts them.
_ANSWER_ONLY = frozenset(
    (
        *("messages", "model", "user", "stream", "stream_options", "seed", "stop", "temperature"),
        *("top_p", "top_k", "min_p", "logprobs", "top_logprobs", "prompt_logprobs"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty"),
        *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "request_id"),
        *("include_stop_str_in_output", "include_reasoning", "parallel_tool_calls", "session_id"),
        *("return_tokens_as_token_ids", "return_token_ids", "return_prompt_text", "cache_salt"),
        *("mm_payload", "return_mm_kwargs", "return_token_offsets", "stream_interval", "n"),
        *("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "truncation_side"),
        # vLLM ignores these without a matching scheduler or watermark.
        *("priority", "watermarking"),
        # Only empty ones get here: `parse_line` rejects the rest.
        *("mm_processor_kwargs", "media_io_kwargs"),
    )
)
# Fields that have no effect if they are empty.
_IDLE_IF_EMPTY = (
    *("logit_bias", "bad_words", "kv_transfer_params", "ec_transfer_params", "vllm_xargs"),
)
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_FORMATS = ("date", "date-time", "time", "duration", "email", "uuid", "uri")
_BOUNDS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))
_SCALARS, _SMALL, _MAX_DEPTH, _MAX_CHARS = {str, int, bool}, range(-1000, 1001), 24, 200
# Other keywords of a JSON schema → whether a value, of a schema with these `$defs`, is usual.
_USUAL_VALUES: Mapping[str, Callable[[Any, Collection[str]], bool]] = {
    "type": lambda value, _: value in _TYPES,
    "format": lambda value, _: value in _FORMATS,
    "$ref": lambda value, refs: value in refs,
    "enum": lambda value, _: isinstance(value, list) and set() < {*map(type, value)} <= _SCALARS,
    "required": lambda value, _: isinstance(value, list) and {*map(type, value)} <= {str},
    "const": lambda value, _: type(value) in _SCALARS,
    "additionalProperties": lambda value, _: isinstance(value, bool),
    **dict.fromkeys(("title", "description", "default"), lambda *_: True),
    **dict.fromkeys(itertools.chain(*_BOUNDS), lambda value, _: value in _SMALL),
}
# Literals, classes, groups and repeats; no look-around, back-references, anchors or lazy repeats.
_REGEX = re.compile(
    r"(?:[\w .,:;@/\"'#%&=<>!~-]|\\[dws.+*?()\[\]{}|/-]|\[\^?[\w .,:;@/#%-]+\]|\((?!\?)|[)|]"
    r"|(?:[?*+]|(?<!\))\{\d{1,2}(?:,\d{1,2})?\})(?![?*+{]))*",
    re.ASCII,
)


def _is_usual_regex(text: str) -> bool:
    """Return whether vLLM compiles it, as far as mmcalib knows."""
    with suppress(re.error):
        re.compile(text)
        return len(text) <= _MAX_CHARS and _REGEX.fullmatch(text) is not None
    return False


def _is_usual_schema(schema: object, refs: Any = None, deep: int = _MAX_DEPTH) -> bool:
    """Return whether it is a JSON schema such as pydantic's, which vLLM compiles."""
    if not isinstance(schema, dict) or not deep:
        return False
    refs = [f"#/$defs/{name}" for name in schema.get("$defs", ())] if refs is None else refs
    inner = list[object]()
    for name, value in schema.items():
        match name, value:
            case (("properties" | "$defs"), dict()):
                inner += value.values()
            case (("items" | "additionalProperties"), dict()):
                inner.append(value)
            case (("anyOf" | "prefixItems"), [_, *_]):
                inner += value
            case _ if name not in _USUAL_VALUES or not _USUAL_VALUES[name](value, refs):
                return False
    ordered = all(schema[a] <= schema[b] for a, b in _BOUNDS if a in schema and b in schema)
    return ordered and all(_is_usual_schema(one, refs, deep - 1) for one in inner)


def _holding(*names: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties, *names]}


_FULL = {"type": "object", "minProperties": 1, "properties": {"$defs": {"type": "object"}}}
# Values of other fields that affect only the answer.
_KNOWN_VALUES: Mapping[str, Any] = {
    "not": {"required": ["response_format", "structured_outputs"]},
    "properties": {
        "response_format": {
            "anyOf": [
                _holding(type={"enum": ["text", "json_object"]}),
                _holding(type={"const": "json_schema"}, json_schema=_holding("name", schema=_FULL)),
            ]
        },
        "structured_outputs": {
            "maxProperties": 1,
            "anyOf": [
                _holding(json=_FULL),
                _holding(json_object={"const": True}),
                _holding(regex={"type": "string"}),
                _holding(choice={"minItems": 1, "items": {"minLength": 1}}),
            ],
        },
        # Words of visible ASCII make at least one token, and at most two lists of tokens each
        # (`SamplingParams.update_from_tokenizer`, 0.32, and VLLM_MAX_NUM_BAD_WORDS).
        "bad_words": {"maxItems": 64, "items": {"pattern": r"\A\s*[!-~]+\Z"}},
    },
}
# Without a schema, any value of these is accepted.
_ANY_VALUE = frozenset(("messages", "model", "user"))
# One token of a placeholder such as <|vision_start|><|image_pad|><|vision_end|>.
MARK_TOKEN = re.compile(r"<[^<>]+>|\[[^][]+\]")
# pydantic accepts more than JSON Schema for these types: "7" and 7.0 are an int.
_LAX: Mapping[str, TypeAdapter[Any]] = {
    "integer": TypeAdapter(int),
    "number": TypeAdapter(float),
    "boolean": TypeAdapter(bool),
}
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
_NUMBERS = _LAX["integer"], _LAX["number"]
_MAX_ERROR_CHARS = 80


class Grammar:
    """Checks requests against `grammar`, as `releases.grammar.request_grammar` wrote it.

    `grammar` is empty for older calibrations. With `tools` the server parses tool calls, with
    `embeds` it accepts embeddings.
    """

    def __init__(
        self, grammar: Mapping[str, Any], *, tools: bool = False, embeds: bool = False
    ) -> None:
        self._grammar, self._tools = grammar, tools or bool(grammar.get("tools"))
        self._embeds, self._is_string = embeds, grammar.get("content") == "string"

    def find_doubt(self, request: ChatRequest) -> str:
        """Name what mmcalib does not model, or nothing. Raises `BadRequest` if vLLM rejects it."""
        fields = {**request.fields, **request.others}
        may_call = fields.get("tool_choice", "auto") not in (None, "none")
        may_call &= request.endpoint != "/v1/responses"  # It needs no parser.
        if fields.get("tools") and may_call and not self._tools:
            flags = "--enable-auto-tool-choice and --tool-call-parser"
            raise BadRequest(f"vLLM rejects tools without {flags}")
        doubts = self._doubts_of_parts(request)
        # With `prompt_embeds` enabled, vLLM searches each text for their marker.
        if self._embeds and not ChatRequest(request.messages).is_plain:
            doubts.append("text of another type is not modelled")
        content = request.messages[-1].get("content")
        # transformers ends such a prompt with the last text (`render_jinja_template`, 5.19).
        ends_with_medium = isinstance(content, list) and content and medium_of(content[-1])
        if fields.get("continue_final_message") and ends_with_medium:
            doubts.append("continue_final_message may cut off the media after the last text")
        if not self._grammar:
            names = fields.keys() - request.fields.keys() - _ANY_VALUE
            doubts = [*doubts, *(f"this calibration does not know {name}" for name in names)]
            return min(doubts, default="")
        body = {**fields, "messages": request.messages}
        # vLLM makes a chat of what it takes at /v1/messages, and validates that too.
        made_chat = not request.endpoint or bool(request.sent and "messages" in self._grammar)
        if made_chat and request.sent:
            self._validate(self._sent, request.sent, "")
        if made_chat:
            self._validate(self._body, body, "")
            match body:
                case {"tool_choice": {"function": {"name": name}}, "tools": [*tools]}:
                    if name not in (tool["function"]["name"] for tool in tools):
                        raise BadRequest(f"tool_choice names {name}, which tools do not contain")
        for message in request.messages if made_chat else ():
            self._validate_parts(message)
        schema = self._grammar["schema"]["properties"]
        names = fields.keys() & _KNOWN_VALUES["properties"].keys()
        values = {name: fields[name] for name in names if fields[name] is not None}
        # Templates see only template fields; code instead of a template may see any field.
        valid = "content" in self._grammar and self._values.is_valid(values)
        modelled = values.keys() if valid and self._compiles(values) else set()
        known = _ANSWER_ONLY | request.fields.keys() | modelled
        if (bias := fields.get("logit_bias")) and made_chat:
            known |= self._validate_bias(bias)
        # If roles match, vLLM repeats the last message in its answer, so it must be text only
        # (vllm/entrypoints/openai/chat_completion/serving.py:1132, 0.32).
        if fields.get("echo"):
            plain = request.is_plain and not request.items() and not fields.get("stream")
            prompted = fields.get("add_generation_prompt", True) is True
            other = prompted and request.messages[-1]["role"] != "assistant"
            known |= {"echo"} if plain or other else set()
        for name in sorted(schema.keys() & fields.keys() - known):
            idle = name in _IDLE_IF_EMPTY and not fields[name]
            if not idle and fields[name] not in (None, schema[name].get("default")):
                doubts.append(f"{name} is not modelled")
        given = {name for name, value in request.sent.items() if value is not None}
        if more := sorted(given - MESSAGES_FIELDS):
            doubts.append(f"{more[0]} of {request.endpoint} is not modelled")
        elif request.sent.get("messages"):
            doubts.append("a system message after others, which vLLM moves for some templates")
        elif not made_chat:
            doubts.append(f"other fields of {request.endpoint} are not modelled")
        return next(iter(doubts), "")

    def classify_part(self, error: UnknownPart) -> BadRequest:
        """Return a definite rejection if vLLM rejects the part's type, else `error`."""
        if not self._embeds and str(error.kind).endswith("_embeds"):
            flags = "--enable-mm-embeds or --enable-prompt-embeds"
            return BadRequest(f"vLLM rejects {error.kind} without {flags}")
        if self._grammar and error.kind not in self._grammar["parts"]:
            return BadRequest(f"vLLM does not support parts of type {error.kind}")
        return error

    def _compiles(self, values: Mapping[str, Any]) -> bool:
        """Return whether vLLM compiles the constraints in these values."""
        match values:
            case {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}:
                usual = _is_usual_schema(schema)
            case {"structured_outputs": {"json": schema}}:
                usual = _is_usual_schema(schema)
            case {"structured_outputs": {"regex": regex}}:
                usual = _is_usual_regex(regex)
            case _:
                return True
        return usual and bool(self._grammar.get("structured_outputs", "auto") == "auto")

    def _validate_bias(self, bias: Mapping[str, Any]) -> set[str]:
        """Return the field's name if its token IDs are known to be in the vocabulary."""
        ids = self._grammar["schema"]["properties"].get("stop_token_ids", {}).get("items", {})
        if not all(map(_INTEGER.fullmatch, bias)):
            raise BadRequest("vLLM rejects logit_bias: its keys must be token IDs")
        self._validate(_validator({"items": ids}), [int(one) for one in bias], "logit_bias.")
        return {"logit_bias"} if "maximum" in ids else set()

    def _doubts_of_parts(self, request: ChatRequest) -> list[str]:
        marks = "" if self._is_string else "".join(self._grammar.get("placeholders", {}).values())
        words = request.text()
        return [
            f"a text contains {token}, which vLLM may count as an item"
            for token in dict.fromkeys(MARK_TOKEN.findall(marks))
            if token in words
        ]

    def _validate_parts(self, message: Mapping[str, Any]) -> None:
        content = message.get("content")
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, Mapping)]
            for part in parts:
                self._validate_part(part)
            # pydantic reads content of OpenAI's types lazily. Its smart mode prefers vLLM's type if
            # that knows more of the fields, and OpenAI's if vLLM's knows none.
            ours = message["role"] in OPENAI_ROLES or {"tool_call_id"} <= message.keys()
            each = itertools.product(self._members, parts)
            known = any(p.keys() & names and one.is_valid(p) for (one, names), p in each)
            if content and ours and not known:
                raise BadRequest("vLLM supports none of the content's parts on their own")
        for call in message.get("tool_calls") or ():
            if isinstance(call, Mapping) and call.get("type", "function") != "function":
                raise BadRequest("vLLM rejects tool_calls of a type other than function")
        # As `_get_full_multimodal_text_prompt` does (vllm/renderers/chat_utils.py, 0.32).
        turn = ChatRequest([dict(message)] if self._is_string else [])
        for modality, items in turn.items().items():
            mark = self._grammar.get("placeholders", {}).get(modality)
            if mark and turn.text().count(mark) > items:
                raise BadRequest(f"a message has more {mark} in its text than {modality} items")

    def _validate_part(self, part: Mapping[str, Any]) -> None:
        kind = part.get("type")
        if kind is None or part.get("uuid") is not None:
            if not part.keys() & (self._parts.keys() - TEXT_FIELDS.keys()):
                raise BadRequest("a part with a uuid or without a type contains no media")
            return
        if kind not in self._parts:
            raise BadRequest(f"vLLM does not support parts of type {kind}")
        self._validate(self._parts[kind], part, f"{kind}.")

    def _validate(self, validator: Any, value: object, where: str) -> None:
        from jsonschema.exceptions import best_match

        error = best_match(validator.iter_errors(value))
        if error is not None:
            path = ".".join(map(str, error.absolute_path))
            text = repr(error.instance)
            long = len(text) >= _MAX_ERROR_CHARS
            words = error.message.replace(text, "it") if long else error.message
            words = " ".join(words.split())[:_MAX_ERROR_CHARS]
            raise BadRequest(f"vLLM rejects {where}{path or 'the fields'}: {words}")

    @cached_property
    def _values(self) -> Any:
        return _validator(_KNOWN_VALUES)

    @cached_property
    def _body(self) -> Any:
        return _validator(self._grammar["schema"])

    @cached_property
    def _sent(self) -> Any:
        """Validates the fields of /v1/messages, which older calibrations lack."""
        return _validator(self._grammar["messages"])

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return {kind: _validator(schema) for kind, schema in self._grammar["parts"].items()}

    @cached_property
    def _members(self) -> list[tuple[Any, set[str]]]:
        """Validators of the part types in vLLM's own message, each with its field names."""
        defs = self._grammar["schema"]["$defs"]
        content = defs["CustomChatCompletionMessageParam"]["properties"]["content"]
        array = next(one for one in content["anyOf"] if one.get("type") == "array")
        names = [one["$ref"].rpartition("/")[2] for one in array["items"]["anyOf"] if "$ref" in one]
        return [
            (_validator({**defs[name], "$defs": defs}), set(defs[name].get("properties", ())))
            for name in names
        ]


def _validator(schema: Mapping[str, Any]) -> Any:
    from jsonschema import Draft202012Validator, validators

    checker = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {kind: lambda _, value, to=to: read_as(to, value) is not None for kind, to in _LAX.items()}
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

        # Try int first: floats above 2**53 are inexact.
        number = next((n for to in _NUMBERS if (n := read_as(to, value)) is not None), None)
        # A calibration stores limits that are too large for a JSON number as text.
        most = int(limit) if isinstance(limit, str) else limit
        endless = isinstance(number, float) and not math.isfinite(number)
        if endless or (number is not None and beyond(number, most)):
            yield Invalid(f"{value!r} is beyond the {name} of {limit}")

    return check
