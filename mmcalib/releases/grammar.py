"""Find the schema of chat requests that the installed vLLM accepts.

It is vLLM's JSON schema plus the limits that vLLM checks elsewhere, found by trying values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mmcalib.domain.shapes import Modality
from mmcalib.releases.release import TargetMissing

_BODY: Mapping[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
_TOOL = {"type": "function", "function": {"name": "f"}}
# A truthy value of each field that vLLM checks together with another field.
_RELATED: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "logprob_token_ids": [1],
    "top_logprobs": 1,
    "prompt_logprobs": 1,
    "tools": [_TOOL],
    "tool_choice": "required",
    "add_generation_prompt": True,
    "continue_final_message": True,
}
_TRUE: Mapping[str, Any] = {"not": {"enum": [None, False, 0, "", [], {}, "none"]}}
# Longest answer to allow here; the context limits it elsewhere.
_ANSWER_TOKENS = 1 << 40
_SEEDS = (0, 1, 0.5)
_LADDER = tuple(2**power for power in range(66))
_TRIES = 64
# Lists and texts accepted at this length count as unlimited.
_LONGEST = 1 << 12
# Fields that vLLM accepts only together with others.
_REQUIRED: Mapping[str, Mapping[str, Any]] = {
    **{key: {"logprobs": True} for key in ("top_logprobs", "logprob_token_ids")},
    "n": {"temperature": 1},
}
# A calibration holds no larger numbers.
_LARGEST = 1 << 53
# A smaller bound is a rounding artifact of the search.
_LEAST = 1e-9
Accepts = Callable[[Mapping[str, Any]], bool]


def request_grammar(model_config: Any) -> dict[str, Any]:
    """Return the schema of chat requests, of each part of their content, and of /v1/messages."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import chat_utils

    schema = _strip_texts(ChatCompletionRequest.model_json_schema())
    accepts = _make_accepts(ChatCompletionRequest, model_config)
    if not accepts({}):
        raise TargetMissing("SamplingParams.verify")
    for name, field in schema["properties"].items():
        if name != "messages":
            field.update(_bounds(accepts, name, field))
    schema["allOf"] = [*_pairs(accepts), *_answer_counts(accepts)]
    # Most parsers only cast; these validate with pydantic (vllm/renderers/chat_utils.py, 0.32).
    validators = {"image_url": "_ImageParser", "audio_url": "_AudioParser"}
    validators |= {"video_url": "_VideoParser", "input_image": "_ResponsesInputImageParser"}
    parts = {}
    for kind in chat_utils.MM_PARSER_MAP:
        parser = getattr(getattr(chat_utils, validators.get(kind, ""), None), "__self__", None)
        parts[kind] = _strip_texts(parser.json_schema()) if parser else {}

    def takes(tokens: Any) -> bool:
        with suppress(ValueError):
            return bool(AnthropicMessagesRequest(model="m", messages=[], max_tokens=tokens))
        return False

    messages = _strip_texts(AnthropicMessagesRequest.model_json_schema())
    messages["properties"]["max_tokens"] |= _range(takes, whole=True)
    return {"schema": schema, "parts": parts, "messages": messages}


def placeholders(model_config: Any, modalities: Sequence[Modality]) -> dict[Modality, str]:
    from vllm.model_executor.model_loader import get_model_cls

    model = get_model_cls(model_config)
    texts = {modality: model.get_placeholder_str(modality, 1) for modality in modalities}
    return {modality: text for modality, text in texts.items() if text}


def _strip_texts(schema: Any) -> Any:
    """Remove titles and descriptions, but not properties of these names."""
    if isinstance(schema, list):
        return [_strip_texts(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    stripped: dict[str, Any] = {}
    for name, value in schema.items():
        if name in ("properties", "$defs"):
            stripped[name] = {inner: _strip_texts(part) for inner, part in value.items()}
        elif name in ("minimum", "maximum") and abs(value) > _LARGEST:
            stripped[name] = str(value)
        elif not (name in ("title", "description") and isinstance(value, str)):
            stripped[name] = _strip_texts(value)
    return stripped


def _make_accepts(request_class: Any, model_config: Any) -> Accepts:
    import msgspec

    defaults = model_config.get_diff_sampling_param()

    def accepts(fields: Mapping[str, Any]) -> bool:
        try:
            request = request_class.model_validate({**_BODY, **fields})
            sampling = request.to_sampling_params(_ANSWER_TOKENS, defaults)
            sampling.verify(model_config, None, None, None)
            # The message to the engine only holds 64-bit integers.
            msgspec.msgpack.encode(sampling)
        except Exception:  # noqa: BLE001 - the server refuses the request for any exception
            return False
        return True

    return accepts


def _bounds(accepts: Accepts, name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema keywords for the values of one field that vLLM accepts."""
    members = [field, *field.get("anyOf", ())]
    kinds = {member.get("type") for member in members}

    def takes(value: Any) -> bool:
        return accepts({**_REQUIRED.get(name, {}), name: value})

    keywords: dict[str, Any] = {}
    if kinds & {"integer", "number"}:
        keywords |= _range(takes, whole="number" not in kinds)
        # vLLM compares some fields before pydantic converts them to numbers.
        if takes(1) and not takes("1"):
            keywords["not"] = {"type": "string"}
    if any(member.get("items", {}).get("type") == "integer" for member in members):
        if items := _range(lambda value: takes([value]), whole=True):
            keywords["items"] = items
        if takes([0]) and not takes([0] * _LONGEST):
            keywords["maxItems"] = _edge(lambda n: takes([0] * n), 1, _LONGEST, whole=True)
    if "array" in kinds and not takes([]):
        keywords["minItems"] = 1
    if "array" in kinds and takes(["a"]) and not takes([""]):
        keywords["not"] = {"type": "array", "contains": {"const": ""}}
    if "string" in kinds and not takes(""):
        keywords["minLength"] = 1
    if "string" in kinds and takes("a"):
        if not takes("a" * _LONGEST):
            keywords["maxLength"] = _edge(lambda n: takes("a" * n), 1, _LONGEST, whole=True)
        if bad := [char for char in map(chr, range(128)) if not takes(f"a{char}")]:
            keywords["pattern"] = rf"\A[^{re.escape(''.join(bad))}]*\Z"
    return keywords


def _range(takes: Callable[[Any], bool], *, whole: bool) -> dict[str, Any]:
    """Return the smallest and the largest number that it accepts, as schema keywords."""
    seeds = (number for number in _SEEDS if not whole or isinstance(number, int))
    seed = next((number for number in seeds if takes(number)), None)
    if seed is None:
        return {}
    keywords: dict[str, Any] = {}
    for keyword, sign in (("minimum", -1), ("maximum", 1)):
        far = next((n for n in _LADDER if not takes(seed + sign * n)), None)
        if far is None:
            continue
        edge = _edge(takes, seed, seed + sign * far, whole=whole)
        if 0 < edge < _LEAST:
            keywords["exclusiveMinimum"] = 0
        elif abs(edge) != _ANSWER_TOKENS:
            keywords[keyword] = edge if abs(edge) <= _LARGEST else str(edge)
    return keywords


def _answer_counts(accepts: Accepts) -> list[dict[str, Any]]:
    """Allow one answer for greedy sampling (`SamplingParams._verify_greedy_sampling`)."""
    if accepts({"n": 2, "temperature": 0}) or not accepts({"n": 2, "temperature": 1}):
        return []
    several = {"required": ["n"], "properties": {"n": {"type": "integer", "minimum": 2}}}
    warm: dict[str, Any] = {"properties": {"temperature": {"exclusiveMinimum": 0}}}
    if not accepts({"n": 2}):
        warm["properties"]["temperature"]["type"] = "number"
        warm["required"] = ["temperature"]
    return [{"if": several, "then": warm}]


def _edge(takes: Callable[[Any], bool], inside: float, outside: float, *, whole: bool) -> float:
    """Bisect for the last accepted value between an accepted and a rejected one."""
    for _ in range(_TRIES):
        between = (inside + outside) // 2 if whole else (inside + outside) / 2
        if between in (inside, outside):
            if not whole or abs(inside - outside) <= 1:
                break
            between += 1
        inside, outside = (between, outside) if takes(between) else (inside, between)
    return inside


def _pairs(accepts: Accepts) -> list[dict[str, Any]]:
    """Return rules for fields that require another, and for fields that exclude each other."""
    is_set: dict[str, Any] = {
        name: {"required": [name], "properties": {name: _TRUE}} for name in _RELATED
    }
    valid_alone = {name: accepts({name: value}) for name, value in _RELATED.items()}
    rules = list[dict[str, Any]]()
    for (one, value), (other, other_value) in itertools.permutations(_RELATED.items(), 2):
        valid_pair = accepts({one: value, other: other_value})
        if valid_pair and not valid_alone[one] and valid_alone[other]:
            rules.append({"if": is_set[one], "then": is_set[other]})
        elif not valid_pair and valid_alone[one] and valid_alone[other] and one < other:
            rules.append({"not": {"allOf": [is_set[one], is_set[other]]}})
    return rules
