"""The histogram of prompts by signature."""

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
from itertools import islice

from mmcalib.corpus.chat import Prompt
from mmcalib.domain.items import RequestText, download_mib
from mmcalib.domain.knobs import covering_count
from mmcalib.domain.shapes import (
    MODALITIES,
    SHAPES,
    AudioShape,
    EncodedItem,
    ImageShape,
    Modality,
    Shape,
    VideoShape,
    weight,
)


@dataclass(frozen=True, slots=True)
class PromptSignature:
    """Everything that affects a prompt's cost: its items' sorted shapes, its text, its fields."""

    shapes: tuple[Shape, ...]
    text_chars: int
    asked: RequestText = dataclasses_field(default_factory=RequestText)

    def items(self, modality: Modality) -> int:
        return sum(shape.modality == modality for shape in self.shapes)

    def fits(self, counts: Mapping[Modality, int]) -> bool:
        """True if the prompt has at most `counts` items of each modality."""
        return all(self.items(modality) <= most for modality, most in counts.items())


# A shape's numbers begin with its modality's place (from 1, as in `shape_order`); a zero ends them.
_KINDS = tuple(SHAPES[modality] for modality in MODALITIES)
_PLACES = {kind: place for place, kind in enumerate(_KINDS, 1)}
_FIELDS = {kind: [(field.name, field.type == "float") for field in fields(kind)] for kind in _KINDS}

# As a whole number, the bits of a positive float sort as it does.
_FLOAT = struct.Struct(">d")
# Marks a number of at least 255 bytes, whose length takes four bytes.
_LONG = 0xFF


def encode_signature(shapes: Iterable[Shape], text_chars: int, asked: RequestText) -> bytes:
    """Encode a signature in about ten bytes per shape plus twenty, for shapes in any order.

    Codes sort by `shape_order`, characters and `sort_key`. Numbers must not be negative.
    """
    messages, text_bytes, tool_bytes, answer_tokens, *rest = asked.sort_key
    numbers = 0, text_chars, messages, text_bytes, tool_bytes, answer_tokens + 1, *rest
    return b"".join((*sorted(map(_shape_code, shapes)), *map(_encode_int, numbers)))


def decode_signature(code: bytes) -> PromptSignature:
    """Reverse `encode_signature`; the shapes are sorted."""
    shapes, numbers = list[Shape](), _decode_ints(code)
    while place := next(numbers):
        shapes.append(_make_shape(place, *islice(numbers, len(_FIELDS[_KINDS[place - 1]]))))
    text_chars, messages, text_bytes, tool_bytes, answer, plain, least, given, tokens = numbers
    answer_tokens, more = answer - 1 if answer else None, (bool(plain), least, bool(given), tokens)
    asked = RequestText(messages, text_bytes, tool_bytes, answer_tokens, *more)
    return PromptSignature(tuple(shapes), text_chars, asked)


@lru_cache(maxsize=1 << 16)
def _shape_code(shape: Shape) -> bytes:
    code, kind = _encode_int(_PLACES[type(shape)]), type(shape)
    for name, is_float in _FIELDS[kind]:
        value = getattr(shape, name)
        code += _encode_int(int.from_bytes(_FLOAT.pack(value)) if is_float else value)
    return code


@lru_cache(maxsize=1 << 16)
def _make_shape(place: int, *numbers: int) -> Shape:
    kind = _KINDS[place - 1]
    pairs = zip(numbers, _FIELDS[kind], strict=True)
    return kind(*(_FLOAT.unpack(n.to_bytes(8))[0] if is_float else n for n, (_, is_float) in pairs))


def _encode_int(number: int) -> bytes:
    length = (number.bit_length() + 7) // 8
    start = bytes((length,)) if length < _LONG else bytes((_LONG,)) + length.to_bytes(4)
    return start + number.to_bytes(length)


def _decode_ints(code: bytes) -> Iterator[int]:
    at = 0
    while at < len(code):
        length, at = code[at], at + 1
        if length == _LONG:
            length, at = int.from_bytes(code[at : at + 4]), at + 4
        yield int.from_bytes(code[at : at + length])
        at += length


# The most prompts that a replay admits.
SIGNATURES_PER_WEIGHT = 256

_RANKS: tuple[Callable[[PromptSignature], float], ...] = (
    lambda signature: sum(weight(s) for s in signature.shapes if isinstance(s, ImageShape)),
    lambda signature: sum(weight(s) for s in signature.shapes if isinstance(s, VideoShape)),
    lambda signature: sum(s.duration_s for s in signature.shapes if isinstance(s, AudioShape)),
    lambda signature: len(signature.shapes),
    lambda signature: signature.text_chars,
    lambda signature: signature.asked.text_bytes + (signature.asked.answer_tokens or 0),
    lambda signature: 1,  # picks at random, by digest
)

# A weight, a digest that breaks ties regardless of order, and the signature's code.
_Entry = tuple[float, bytes, bytes]


@dataclass(slots=True)
class TopSignatures:
    """The top `SIGNATURES_PER_WEIGHT` signatures (codes) by each of several weights."""

    _heaps: tuple[list[_Entry], ...] = dataclasses_field(
        default_factory=lambda: tuple([] for _ in _RANKS)
    )
    _uses: dict[bytes, int] = dataclasses_field(default_factory=dict)

    def __contains__(self, code: bytes) -> bool:
        return code in self._uses

    def offer(self, code: bytes) -> list[bytes]:
        """Offer a new signature, and return those that it displaces."""
        signature = decode_signature(code)
        digest = hashlib.blake2b(repr(signature).encode(), digest_size=16).digest()
        displaced = []
        for rank, heap in zip(_RANKS, self._heaps, strict=True):
            entry = rank(signature), digest, code
            if not entry[0]:
                continue
            if len(heap) < SIGNATURES_PER_WEIGHT:
                heapq.heappush(heap, entry)
            elif entry[:2] > heap[0][:2]:
                _, _, out = heapq.heapreplace(heap, entry)
                self._uses[out] -= 1
                if not self._uses[out]:
                    del self._uses[out]
                    displaced.append(out)
            else:
                continue
            self._uses[code] = self._uses.get(code, 0) + 1
        return displaced


@dataclass(frozen=True, slots=True)
class PromptCount:
    """`count` prompts of `signature`; `exemplar` is the first one, or only its origin."""

    signature: PromptSignature
    count: int
    exemplar: Prompt


class PromptCensus:
    """The exact histogram of prompts, independent of their order.

    Keeps whole prompts for replay: those of the heaviest signatures, and random ones. Others keep
    only their origin, so that a signature takes about 250 bytes.
    """

    def __init__(self, counts: Iterable[PromptCount] = ()) -> None:
        # A signature's code -> its index in `_counts` and `_origins`.
        self._places: dict[bytes, int] = {}
        self._counts = array("Q")
        self._origins: list[str] = []
        # Exemplars that have more than an origin.
        self._kept: dict[bytes, Prompt] = {}
        self._whole = TopSignatures()
        # Number of items of each modality in a prompt -> number of such prompts.
        self._carrying: Counter[tuple[int, ...]] = Counter()
        # The origins of the requests that send and download most, with what they do.
        self.largest_body = 0, ""
        self.downloads: tuple[int, str, Sequence[EncodedItem]] = 0, "", ()
        for entry in counts:
            one = entry.signature
            code = encode_signature(one.shapes, one.text_chars, one.asked)
            self._count(one.shapes, code, entry.count, entry.exemplar)

    def add(
        self, shapes: Iterable[Shape], prompt: Prompt, files: Sequence[EncodedItem] = ()
    ) -> None:
        """Count a prompt; `files` are its items as a server downloads them."""
        shapes, request = list(shapes), prompt.request
        code = encode_signature(shapes, len(request.text()), request.measure_context())
        self._count(shapes, code, 1, prompt)
        self.largest_body = max(self.largest_body, (prompt.body_bytes, prompt.origin))
        if (mib := download_mib(files)) > self.downloads[0]:
            self.downloads = mib, prompt.origin, files

    def prompts(self) -> int:
        return self._carrying.total()

    def signatures(self) -> Iterator[PromptCount]:
        """Yield the distinct signatures in a fixed order."""
        for code in sorted(self._places):
            count = self._counts[self._places[code]]
            yield PromptCount(decode_signature(code), count, self._exemplar(code))

    def items_covering(self, modalities: Sequence[Modality], share: float) -> dict[Modality, int]:
        """Return the items per modality that admit at least `share` of the prompts.

        Covers prompts with the fewest items first, so that a larger share never lowers a count.
        """
        if not 0 < share <= 1:
            raise ValueError(f"share {share} is not in (0, 1]")
        places = [MODALITIES.index(modality) for modality in modalities]
        per_prompt = sorted(
            (tuple(carried[place] for place in places), count)
            for carried, count in self._carrying.items()
        )
        needed = covering_count(share, self.prompts())
        most, covered = (0,) * len(modalities), 0
        for items, prompts in sorted(per_prompt, key=lambda entry: sum(entry[0])):
            if covered >= needed:
                break
            most = tuple(map(max, most, items))
            covered += prompts
        return dict(zip(modalities, most, strict=True))

    def _count(self, shapes: Sequence[Shape], code: bytes, count: int, exemplar: Prompt) -> None:
        modalities = [shape.modality for shape in shapes]
        self._carrying[tuple(map(modalities.count, MODALITIES))] += count
        place = self._places.get(code)
        if place is None:
            place = self._places[code] = len(self._counts)
            self._counts.append(count)
            self._origins.append(exemplar.origin)
            for displaced in self._whole.offer(code):
                self._keep(displaced, self._exemplar(displaced))
        else:
            self._counts[place] += count
            if exemplar.origin > self._origins[place]:
                return
            if exemplar.origin == self._origins[place]:
                exemplar = min(self._exemplar(code), self._cut(code, exemplar), key=_exemplar_order)
        self._keep(code, exemplar)

    def _cut(self, code: bytes, exemplar: Prompt) -> Prompt:
        """Return the exemplar, reduced to its origin unless its signature is kept whole."""
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
    """Sort key for prompts of one origin, such as requests of two corpora with different roles."""
    return tuple(item.path for item in prompt.items), prompt.request.text(), repr(prompt.request)
