"""What a chat request may say, asked of the installed vLLM: a JSON schema, with what vLLM checks
beyond it written into it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmcalib.domain.shapes import Modality
from mmcalib.releases.release import TargetMoved

_BODY: Mapping[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
_TOOL = {"type": "function", "function": {"name": "f"}}
# A value of each field that vLLM looks at together with another. All are true to Python.
_TOGETHER: Mapping[str, Any] = {
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
# As far as an answer may go: the context bounds it elsewhere.
_ANSWER_TOKENS = 1 << 40
_SEEDS = (0, 1, 0.5)
_LADDER = tuple(2**power for power in range(66))
_TRIES = 64
# Lists and texts that are longer are bounded by nothing but the request.
_LONGEST = 1 << 12
# Fields that are taken only beside others.
_BESIDE: Mapping[str, Mapping[str, Any]] = {
    **{key: {"logprobs": True} for key in ("top_logprobs", "logprob_token_ids")},
    "n": {"temperature": 1},
}
# A calibration holds no larger numbers.
_LARGEST = 1 << 53
# What is less is no bound that somebody wrote.
_LEAST = 1e-9
Accepts = Callable[[Mapping[str, Any]], bool]


def request_grammar(model_config: Any) -> dict[str, Any]:
    """The schema of chat requests, and the schema of each part type that the chat parser takes."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import chat_utils

    schema = _bare(ChatCompletionRequest.model_json_schema())
    accepts = _asking(ChatCompletionRequest, model_config)
    if not accepts({}):
        raise TargetMoved("SamplingParams.verify")
    for name, field in schema["properties"].items():
        if name != "messages":
            field.update(_bounds(accepts, name, field))
    schema["allOf"] = [*_pairs(accepts), *_several(accepts)]
    # Most parsers only cast; these are pydantic's (vllm/renderers/chat_utils.py, 0.32).
    checked = {"image_url": "_ImageParser", "audio_url": "_AudioParser"}
    checked |= {"video_url": "_VideoParser", "input_image": "_ResponsesInputImageParser"}
    parts = {}
    for kind in chat_utils.MM_PARSER_MAP:
        parser = getattr(getattr(chat_utils, checked.get(kind, ""), None), "__self__", None)
        parts[kind] = _bare(parser.json_schema()) if parser else {}
    return {"schema": schema, "parts": parts}


def placeholders(model_config: Any, modalities: Sequence[Modality]) -> dict[Modality, str]:
    """What stands for the first item of a modality in a prompt."""
    from vllm.model_executor.model_loader import get_model_cls

    found = get_model_cls(model_config)
    named = {modality: found.get_placeholder_str(modality, 1) for modality in modalities}
    return {modality: text for modality, text in named.items() if text}


def _bare(schema: Any) -> Any:
    """Without words for people; properties may have their names."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for name, value in schema.items():
        if name in ("properties", "$defs"):
            kept[name] = {inner: _bare(one) for inner, one in value.items()}
        elif name in ("minimum", "maximum") and abs(value) > _LARGEST:
            kept[name] = str(value)
        elif not (name in ("title", "description") and isinstance(value, str)):
            kept[name] = _bare(value)
    return kept


def _asking(request_class: Any, model_config: Any) -> Accepts:
    """Whether vLLM takes a body up to where the engine gets its sampling parameters."""
    import msgspec

    given = model_config.get_diff_sampling_param()

    def accepts(fields: Mapping[str, Any]) -> bool:
        try:
            request = request_class.model_validate({**_BODY, **fields})
            sampling = request.to_sampling_params(_ANSWER_TOKENS, given)
            sampling.verify(model_config, None, None, None)
            # As it goes to the engine: integers of 64 bits.
            msgspec.msgpack.encode(sampling)
        except Exception:  # noqa: BLE001 - whatever it raises, the server refuses the request
            return False
        return True

    return accepts


def _bounds(accepts: Accepts, name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that say which values of one field vLLM takes."""
    members = [field, *field.get("anyOf", ())]
    kinds = {one.get("type") for one in members}

    def takes(value: Any) -> bool:
        return accepts({**_BESIDE.get(name, {}), name: value})

    found: dict[str, Any] = {}
    if kinds & {"integer", "number"}:
        found |= _range(takes, whole="number" not in kinds)
        # Some are compared before pydantic makes a number of them.
        if takes(1) and not takes("1"):
            found["not"] = {"type": "string"}
    if any(one.get("items", {}).get("type") == "integer" for one in members):
        if items := _range(lambda value: takes([value]), whole=True):
            found["items"] = items
        if takes([0]) and not takes([0] * _LONGEST):
            found["maxItems"] = _edge(lambda n: takes([0] * n), 1, _LONGEST, whole=True)
    if "array" in kinds and not takes([]):
        found["minItems"] = 1
    if "array" in kinds and takes(["a"]) and not takes([""]):
        found["not"] = {"type": "array", "contains": {"const": ""}}
    if "string" in kinds and not takes(""):
        found["minLength"] = 1
    if "string" in kinds and takes("a"):
        if not takes("a" * _LONGEST):
            found["maxLength"] = _edge(lambda n: takes("a" * n), 1, _LONGEST, whole=True)
        if bad := [char for char in map(chr, range(128)) if not takes(f"a{char}")]:
            found["pattern"] = rf"\A[^{re.escape(''.join(bad))}]*\Z"
    return found


def _range(takes: Callable[[Any], bool], *, whole: bool) -> dict[str, Any]:
    """The least and the greatest number that it takes."""
    seeds = (one for one in _SEEDS if not whole or isinstance(one, int))
    seed = next((one for one in seeds if takes(one)), None)
    if seed is None:
        return {}
    found: dict[str, Any] = {}
    for keyword, sign in (("minimum", -1), ("maximum", 1)):
        far = next((n for n in _LADDER if not takes(seed + sign * n)), None)
        if far is None:
            continue
        edge = _edge(takes, seed, seed + sign * far, whole=whole)
        if 0 < edge < _LEAST:
            found["exclusiveMinimum"] = 0
        elif abs(edge) != _ANSWER_TOKENS:
            found[keyword] = edge if abs(edge) <= _LARGEST else str(edge)
    return found


def _several(accepts: Accepts) -> list[dict[str, Any]]:
    """Greedy sampling has one answer (`SamplingParams._verify_greedy_sampling`)."""
    if accepts({"n": 2, "temperature": 0}) or not accepts({"n": 2, "temperature": 1}):
        return []
    several = {"required": ["n"], "properties": {"n": {"type": "integer", "minimum": 2}}}
    warm: dict[str, Any] = {"properties": {"temperature": {"exclusiveMinimum": 0}}}
    if not accepts({"n": 2}):
        warm["properties"]["temperature"]["type"] = "number"
        warm["required"] = ["temperature"]
    return [{"if": several, "then": warm}]


def _edge(takes: Callable[[Any], bool], inside: float, outside: float, *, whole: bool) -> float:
    """The last value that is taken on the way from one that is to one that is not."""
    for _ in range(_TRIES):
        between = (inside + outside) // 2 if whole else (inside + outside) / 2
        if between in (inside, outside):
            if not whole or abs(inside - outside) <= 1:
                break
            between += 1
        inside, outside = (between, outside) if takes(between) else (inside, between)
    return inside


def _pairs(accepts: Accepts) -> list[dict[str, Any]]:
    """Which fields need another, and which vLLM does not take together."""
    both: dict[str, Any] = {
        name: {"required": [name], "properties": {name: _TRUE}} for name in _TOGETHER
    }
    alone = {name: accepts({name: value}) for name, value in _TOGETHER.items()}
    rules = list[dict[str, Any]]()
    for (one, value), (other, beside) in itertools.permutations(_TOGETHER.items(), 2):
        together = accepts({one: value, other: beside})
        if together and not alone[one] and alone[other]:
            rules.append({"if": both[one], "then": both[other]})
        elif not together and alone[one] and alone[other] and one < other:
            rules.append({"not": {"allOf": [both[one], both[other]]}})
    return rules
