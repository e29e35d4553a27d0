"""A bound of what any text takes, found by rendering requests, and kept where it holds for all."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmcalib.child import trials
from mmcalib.corpus.chat import asked
from mmcalib.domain.items import TextBound
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import BareRequest

if TYPE_CHECKING:
    from mmcalib.child.texts import TextRenderer

# What normalisers may make of a byte (Unicode's FAQ on normalisation: NFKC makes 33 of 3, NFD 3 of
# 1). C is counted for in the bytes themselves.
_EXPANSION = {"NFC": 1, "Replace": 1, "Prepend": 1, "Strip": 1, "NFD": 3, "NFKC": 11, "NFKD": 11}


def text_bound(texts: TextRenderer, modalities: Sequence[Modality]) -> TextBound:
    """What was seen of the template, as a bound; without one `compared` is 0."""
    try:
        scale = _Scale(texts.tokenizer)
        return _found(texts, scale, modalities)
    except Exception as error:  # noqa: BLE001 - no template, or one of its own kind: no bound
        return TextBound(why=" ".join(str(error).split())[:200] or type(error).__name__)


class _Scale:
    """Weighs a rendered prompt: no tokenizer makes more tokens than bytes, and one of each added
    token, such as the marks of a turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        self.per_byte = _expansion(backend.get("normalizer"))
        added = sorted((t["content"] for t in backend["added_tokens"]), key=len, reverse=True)
        if min(map(len, added), default=2) < 2:
            raise ValueError("an added token of one letter")
        self._added = re.compile("|".join(map(re.escape, added))) if added else None
        # Such tokenizers put a space before the text, and some before each piece of it.
        self._each = 2 if re.search(r'"Prepend"|"Metaspace"', json.dumps(backend)) else 1
        self._once = 1 if self._each > 1 or '"add_prefix_space": true' in json.dumps(backend) else 0

    def weight(self, prompt: str) -> int:
        marks = len(self._added.findall(prompt)) if self._added else 0
        rest = self._added.sub("", prompt) if self._added else prompt
        return self._once + self._each * marks + self.per_byte * len(rest.encode())


def _expansion(normalizer: dict[str, Any] | None) -> int:
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        product = 1
        for part in normalizer["normalizers"]:
            product *= _expansion(part)
        return product
    if kind not in _EXPANSION:
        raise ValueError(f"its tokenizer's normaliser is {kind}")
    return _EXPANSION[kind]


def _found(texts: TextRenderer, scale: _Scale, modalities: Sequence[Modality]) -> TextBound:
    def weight(request: BareRequest) -> int:
        return scale.weight(texts.rendered(request)[0])

    one = trials.ONE
    base = max(0, weight(one) - scale.per_byte * _bytes(one))
    bound = TextBound(base_tokens=base, tokens_per_byte=scale.per_byte)
    seen = [one]
    for request in trials.conversations():
        try:
            more = weight(request) - base - scale.per_byte * _bytes(request)
        except Exception:  # noqa: BLE001, S112 - templates refuse some orders of turns
            continue
        seen.append(request)
        each = -(-more // max(1, len(request.messages) - 1))
        bound = replace(bound, message_tokens=max(bound.message_tokens, each))
    for modality in modalities:
        around: list[int] = []
        for count in trials.ITEMS:
            request = trials.with_items(modality, count)
            try:
                prompt, ids = texts.rendered(request)
            except Exception:  # models take one, or any number
                if around:
                    break
                raise
            plain = most(bound, replace(request, items={}))
            more = scale.weight(prompt) - plain + texts.grown(ids, request.items)
            around.append(-(-more // count))
            seen.append(request)
        bound = replace(bound, item_tokens={**bound.item_tokens, modality: max(0, *around)})
    bound = _with_tools(texts, bound, weight)
    seen += list(trials.worded())
    compared = 0
    for request in seen:
        if weight(request) > most(bound, request) + _taken(texts, request):
            return TextBound(why="its template writes some words more than once")
        if texts.count(request) > most(bound, request):
            return TextBound(why="its tokenizer makes more tokens than the text has bytes")
        compared += 1
    return replace(bound, compared=compared)


def _taken(texts: TextRenderer, request: BareRequest) -> int:
    """Tokens that the rendered prompt has and that give way to placeholders."""
    return -texts.grown(texts.rendered(request)[1], request.items) if request.items else 0


def _with_tools(texts: TextRenderer, bound: TextBound, weight: Any) -> TextBound:
    """None where a template writes more of tools than their JSON and a constant."""
    around = []
    for request in trials.tooled():
        try:
            around.append(weight(request) - most(replace(bound, tools_tokens=0), request))
        except Exception:  # noqa: BLE001
            return bound
    return replace(bound, tools_tokens=max(0, *around))


def most(bound: TextBound, request: BareRequest) -> int:
    found = bound.most(asked(request.messages, request.fields), request.items)
    if found is None:
        raise ValueError("nothing bounds a request that was tried")
    return found


def _bytes(request: BareRequest) -> int:
    return asked(request.messages, request.fields).text_bytes
