"""Histogram of prompts by signature."""

from __future__ import annotations

import hashlib
import heapq
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import field as dataclasses_field
from functools import lru_cache
from itertools import zip_longest

from mmcalib.corpus.chat import Prompt
from mmcalib.domain.items import Asked
from mmcalib.domain.knobs import least_covering
from mmcalib.domain.shapes import (
    MODALITIES,
    SHAPES,
    AudioShape,
    ImageShape,
    Modality,
    Shape,
    VideoShape,
    weight,
)


@dataclass(frozen=True, slots=True)
class PromptSignature:
    """What decides a prompt's cost: its items' shapes, sorted, its text, what it asks for."""

    shapes: tuple[Shape, ...]
    text_chars: int
    asked: Asked = dataclasses_field(default_factory=Asked)

    def items(self, modality: Modality) -> int:
        """How many of its items are of `modality`."""
        return sum(shape.modality == modality for shape in self.shapes)

    def within(self, counts: Mapping[Modality, int]) -> bool:
        """Whether it carries no more items of any of the modalities."""
        return all(self.items(modality) <= most for modality, most in counts.items())


# A shape begins with its modality's place, from 1, as in `shape_order`; a zero ends them.
_KINDS = tuple(SHAPES[modality] for modality in MODALITIES)
_PLACES = {kind: place for place, kind in enumerate(_KINDS, 1)}
_IS_FLOAT = tuple(tuple(field.type == "float" for field in fields(kind)) for kind in _KINDS)
_END = b"\0"

# Positive numbers of this form are in the order of their bytes.
_FLOAT = struct.Struct(">d")
# Of a longer whole number the length itself stands in four bytes.
_LONG = 0xFF


def encode(shapes: Iterable[Shape], text_chars: int, asked: Asked) -> bytes:
    """Encode a signature, shapes in any order: some ten bytes per shape, and twenty.

    Bytes compare as `shape_order`, characters and `Asked.order` do. Numbers must not be negative.
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
            at += _FLOAT.size if is_float else _code_size(code, at)
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
        size = _FLOAT.size if is_float else _code_size(code, at)
        values += _FLOAT.unpack_from(code, at) if is_float else _wholes(code[: at + size], at)
        at += size
    return _KINDS[code[0] - 1](*values)  # type: ignore[arg-type]


def _whole(number: int) -> bytes:
    length = (number.bit_length() + 7) // 8
    if length < _LONG:
        return bytes((length,)) + number.to_bytes(length)
    return bytes((_LONG,)) + length.to_bytes(4) + number.to_bytes(length)


def _code_size(code: bytes, at: int) -> int:
    if code[at] < _LONG:
        return 1 + code[at]
    return 5 + int.from_bytes(code[at + 1 : at + 5])


def _wholes(code: bytes, at: int) -> Sequence[int]:
    found = []
    while at < len(code):
        end = at + _code_size(code, at)
        found.append(int.from_bytes(code[at + (1 if code[at] < _LONG else 5) : end]))
        at = end
    return found


# As many as a replay admits.
PER_RANK = 256


_RANKS: tuple[Callable[[PromptSignature], float], ...] = (
    lambda signature: sum(weight(s) for s in signature.shapes if isinstance(s, ImageShape)),
    lambda signature: sum(weight(s) for s in signature.shapes if isinstance(s, VideoShape)),
    lambda signature: sum(s.duration_s for s in signature.shapes if isinstance(s, AudioShape)),
    lambda signature: len(signature.shapes),
    lambda signature: signature.text_chars,
    lambda signature: signature.asked.text_bytes + (signature.asked.answer_tokens or 0),
    lambda signature: 1,  # by chance alone
)

# A weight, a digest that decides between equals, whatever their order, and the signature's code.
_Place = tuple[float, bytes, bytes]


@dataclass(slots=True)
class TopSignatures:
    """At most `PER_RANK` signatures (codes) by each of several weights, in any order of arrival."""

    _heaps: tuple[list[_Place], ...] = dataclasses_field(
        default_factory=lambda: tuple([] for _ in _RANKS)
    )
    _held: dict[bytes, int] = dataclasses_field(default_factory=dict)

    def __contains__(self, code: bytes) -> bool:
        return code in self._held

    def offer(self, code: bytes) -> list[bytes]:
        """A new signature, which may be kept; those that are kept no longer for it."""
        signature = decode(code)
        digest = hashlib.blake2b(repr(signature).encode(), digest_size=16).digest()
        gone = []
        for rank, heap in zip(_RANKS, self._heaps, strict=True):
            entry = rank(signature), digest, code
            if not entry[0]:
                continue
            if len(heap) < PER_RANK:
                heapq.heappush(heap, entry)
            elif entry[:2] > heap[0][:2]:
                _, _, out = heapq.heapreplace(heap, entry)
                self._held[out] -= 1
                if not self._held[out]:
                    del self._held[out]
                    gone.append(out)
            else:
                continue
            self._held[code] = self._held.get(code, 0) + 1
        return gone


@dataclass(frozen=True, slots=True)
class PromptCount:
    """`count` prompts of `signature`; `exemplar` has the first origin, whole or origin alone."""

    signature: PromptSignature
    count: int
    exemplar: Prompt


class PromptCensus:
    """The exact histogram of prompts. Adding gives the same in any order.

    Some whole prompts are kept, for replay: of the heaviest signatures, and of some by chance. Of
    the others only an origin is: memory grows by some 250 bytes with the number of signatures.
    """

    def __init__(self, counts: Iterable[PromptCount] = ()) -> None:
        # By the code of a signature its place in the columns behind.
        self._places: dict[bytes, int] = {}
        self._counts = array("Q")
        self._origins: list[str] = []
        # Exemplars of which there is more than an origin.
        self._kept: dict[bytes, Prompt] = {}
        self._whole = TopSignatures()
        # Prompts by their items of each modality.
        self._carrying: Counter[tuple[int, ...]] = Counter()
        for entry in counts:
            one = entry.signature
            code = encode(one.shapes, one.text_chars, one.asked)
            self._count(one.shapes, code, entry.count, entry.exemplar)

    def add(self, shapes: Iterable[Shape], prompt: Prompt) -> None:
        """Count `prompt`, whose items have `shapes`."""
        listed, request = list(shapes), prompt.request
        code = encode(listed, len(request.text()), request.asked())
        self._count(listed, code, 1, prompt)

    def prompts(self) -> int:
        """The number of prompts."""
        return self._carrying.total()

    def signatures(self) -> Iterator[PromptCount]:
        """The distinct signatures, in a fixed order."""
        for code in sorted(self._places):
            count = self._counts[self._places[code]]
            yield PromptCount(decode(code), count, self._exemplar(code))

    def items_per_prompt(self, modality: Modality, quantile: float = 1.0) -> int:
        """The least n so that a share `quantile` in (0, 1] of the prompts has at most n items."""
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile {quantile} is not in (0, 1]")
        per_prompt = self.histogram(modality)
        needed = least_covering(quantile, per_prompt.total())
        covered = 0
        for items, prompts in sorted(per_prompt.items()):
            covered += prompts
            if covered >= needed:
                return items
        return 0

    def covering(self, modalities: Sequence[Modality], share: float) -> dict[Modality, int]:
        """Items per modality that together admit at least `share` of the prompts.

        Fewest items first, so that a larger share never gives less of any modality.
        """
        places = [MODALITIES.index(modality) for modality in modalities]
        per_prompt = sorted(
            (tuple(carried[place] for place in places), count)
            for carried, count in self._carrying.items()
        )
        needed = least_covering(share, self.prompts())
        most, covered = (0,) * len(modalities), 0
        for items, prompts in sorted(per_prompt, key=lambda entry: sum(entry[0])):
            if covered >= needed:
                break
            most = tuple(map(max, most, items))
            covered += prompts
        return dict(zip(modalities, most, strict=True))

    def histogram(self, modality: Modality) -> Counter[int]:
        """Number of items of `modality` in a prompt -> number of such prompts."""
        place = MODALITIES.index(modality)
        per_prompt: Counter[int] = Counter()
        for carried, count in self._carrying.items():
            per_prompt[carried[place]] += count
        return per_prompt

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptCensus) and all(
            one == another for one, another in zip_longest(self.signatures(), other.signatures())
        )

    __hash__ = None  # type: ignore[assignment]

    def _count(self, shapes: Sequence[Shape], code: bytes, count: int, exemplar: Prompt) -> None:
        modalities = [shape.modality for shape in shapes]
        self._carrying[tuple(map(modalities.count, MODALITIES))] += count
        place = self._places.get(code)
        if place is None:
            place = self._places[code] = len(self._counts)
            self._counts.append(count)
            self._origins.append(exemplar.origin)
            for gone in self._whole.offer(code):
                self._keep(gone, self._exemplar(gone))
        else:
            self._counts[place] += count
            if exemplar.origin > self._origins[place]:
                return
            if exemplar.origin == self._origins[place]:
                alike = self._exemplar(code), self._cut(code, exemplar)
                exemplar = min(alike, key=_exemplar_order)
        self._keep(code, exemplar)

    def _cut(self, code: bytes, exemplar: Prompt) -> Prompt:
        """The exemplar of a signature, only its origin unless the signature is kept whole."""
        is_whole = code in self._whole or not exemplar.request.messages
        return exemplar if is_whole else Prompt(exemplar.origin)

    def _exemplar(self, code: bytes) -> Prompt:
        return self._kept.get(code) or Prompt(self._origins[self._places[code]])

    def _keep(self, code: bytes, exemplar: Prompt) -> None:
        exemplar = self._cut(code, exemplar)
        self._origins[self._places[code]] = exemplar.origin
        if exemplar != Prompt(exemplar.origin):
            self._kept[code] = exemplar
        else:
            self._kept.pop(code, None)


def _exemplar_order(prompt: Prompt) -> tuple[tuple[str, ...], str, str]:
    """Of prompts of one origin: two corpora may have requests that differ in, say, their roles."""
    return tuple(item.path for item in prompt.items), prompt.request.text(), repr(prompt.request)
