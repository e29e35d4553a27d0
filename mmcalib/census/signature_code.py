"""A signature as few bytes: the same for equal ones, and in their order."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import lru_cache

from mmcalib.census.signature import PromptSignature
from mmcalib.domain.asked import Asked
from mmcalib.domain.shapes import MODALITIES, SHAPES, Shape

# A shape begins with the place of its modality, from 1, as `shape_order` has them; behind the last
# stands a zero.
_KINDS = tuple(SHAPES[modality] for modality in MODALITIES)
_PLACES = {kind: place for place, kind in enumerate(_KINDS, 1)}
_IS_FLOAT = tuple(tuple(field.type == "float" for field in fields(kind)) for kind in _KINDS)
_END = b"\0"

# Positive numbers of this form are in the order of their bytes.
_FLOAT = struct.Struct(">d")
# Of a longer whole number the length itself stands in four bytes.
_LONG = 0xFF


def encode(shapes: Iterable[Shape], text_chars: int, asked: Asked) -> bytes:
    """Of the signature with these shapes, in whatever order: some ten bytes for each, and twenty.

    Bytes compare as `shape_order` of the shapes, the characters and `Asked.order` do. No number may
    be negative.
    """
    codes = sorted(map(_shape_code, shapes))
    messages, text_bytes, tool_bytes, answer_tokens, plain, least = asked.order
    numbers = text_chars, messages, text_bytes, tool_bytes, answer_tokens + 1, plain, least
    return b"".join((*codes, _END, *map(_whole, numbers)))


def decode(code: bytes) -> PromptSignature:
    """The reverse; shapes are in their order."""
    shapes, at = [], 0
    while kind := code[at]:
        start, at = at, at + 1
        for is_float in _IS_FLOAT[kind - 1]:
            at += _FLOAT.size if is_float else _size(code, at)
        shapes.append(_shape(code[start:at]))
    text_chars, messages, text_bytes, tool_bytes, answer, plain, least = _wholes(code, at + 1)
    answer_tokens = answer - 1 if answer else None
    asked = Asked(messages, text_bytes, tool_bytes, answer_tokens, bool(plain), least)
    return PromptSignature(tuple(shapes), text_chars, asked)


@lru_cache(maxsize=1 << 16)
def _shape_code(shape: Shape) -> bytes:
    place = _PLACES[type(shape)]
    code = bytes((place,))
    for field, is_float in zip(fields(shape), _IS_FLOAT[place - 1], strict=True):
        value = getattr(shape, field.name)
        code += _FLOAT.pack(value) if is_float else _whole(value)
    return code


@lru_cache(maxsize=1 << 16)
def _shape(code: bytes) -> Shape:
    values: list[float] = []
    at = 1
    for is_float in _IS_FLOAT[code[0] - 1]:
        size = _FLOAT.size if is_float else _size(code, at)
        values += _FLOAT.unpack_from(code, at) if is_float else _wholes(code[: at + size], at)
        at += size
    return _KINDS[code[0] - 1](*values)  # type: ignore[arg-type]


def _whole(number: int) -> bytes:
    length = (number.bit_length() + 7) // 8
    if length < _LONG:
        return bytes((length,)) + number.to_bytes(length)
    return bytes((_LONG,)) + length.to_bytes(4) + number.to_bytes(length)


def _size(code: bytes, at: int) -> int:
    """How many bytes the whole number there takes."""
    if code[at] < _LONG:
        return 1 + code[at]
    return 5 + int.from_bytes(code[at + 1 : at + 5])


def _wholes(code: bytes, at: int) -> Sequence[int]:
    """All numbers from there on."""
    found = []
    while at < len(code):
        end = at + _size(code, at)
        found.append(int.from_bytes(code[at + (1 if code[at] < _LONG else 5) : end]))
        at = end
    return found
