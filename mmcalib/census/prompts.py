"""The histogram of prompts by signature."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mmcalib.census.census import shape_order
from mmcalib.corpus.chat import Prompt
from mmcalib.domain.items import RequestText, download_mib
from mmcalib.domain.knobs import covering_count
from mmcalib.domain.shapes import (
    MODALITIES,
    AudioShape,
    EncodedItem,
    ImageShape,
    Modality,
    Shape,
    VideoShape,
    from_row,
    weight,
)


@dataclass(frozen=True, slots=True)
class PromptSignature:
    """Everything that affects a prompt's cost: its items' sorted shapes, its text, its fields."""

    shapes: tuple[Shape, ...]
    text_chars: int
    asked: RequestText = field(default_factory=RequestText)

    def items(self, modality: Modality) -> int:
        return sum(shape.modality == modality for shape in self.shapes)

    def fits(self, counts: Mapping[Modality, int]) -> bool:
        """True if the prompt has at most `counts` items of each modality."""
        return all(self.items(modality) <= most for modality, most in counts.items())


# A signature as numbers alone, which sort as it does and take less memory: rows of `shape_order`,
# characters, and the text's `sort_key`.
SignatureCode = tuple[Any, ...]

_row = lru_cache(maxsize=1 << 16)(shape_order)


def encode_signature(shapes: Iterable[Shape], text_chars: int, asked: RequestText) -> SignatureCode:
    """Encode a signature, for shapes in any order."""
    return tuple(sorted(map(_row, shapes))), text_chars, *asked.sort_key


def decode_signature(code: SignatureCode) -> PromptSignature:
    """Reverse `encode_signature`; the shapes are sorted."""
    rows, text_chars, messages, text_bytes, tool_bytes, answer, *rest = code
    shapes = tuple(from_row(MODALITIES[place], numbers) for place, *numbers in rows)
    answer_tokens = None if answer < 0 else answer
    asked = RequestText(messages, text_bytes, tool_bytes, answer_tokens, *rest)
    return PromptSignature(shapes, text_chars, asked)


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
_Entry = tuple[float, bytes, SignatureCode]


@dataclass(slots=True)
class TopSignatures:
    """The top `SIGNATURES_PER_WEIGHT` signatures (codes) by each of several weights."""

    _heaps: tuple[list[_Entry], ...] = field(default_factory=lambda: tuple([] for _ in _RANKS))
    _uses: dict[SignatureCode, int] = field(default_factory=dict)

    def __contains__(self, code: SignatureCode) -> bool:
        return code in self._uses

    def offer(self, code: SignatureCode) -> list[SignatureCode]:
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
    only their origin, so that a signature takes about 400 bytes.
    """

    def __init__(self, counts: Iterable[PromptCount] = ()) -> None:
        # A signature's code -> its count, and the origin of its exemplar.
        self._seen: dict[SignatureCode, tuple[int, str]] = {}
        # The exemplars that are kept whole.
        self._kept: dict[SignatureCode, Prompt] = {}
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
        for code in sorted(self._seen):
            count, origin = self._seen[code]
            exemplar = self._kept.get(code) or Prompt(origin)
            yield PromptCount(decode_signature(code), count, exemplar)

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

    def _count(
        self, shapes: Sequence[Shape], code: SignatureCode, count: int, exemplar: Prompt
    ) -> None:
        modalities = [shape.modality for shape in shapes]
        self._carrying[tuple(map(modalities.count, MODALITIES))] += count
        if code not in self._seen:
            for displaced in self._whole.offer(code):
                self._kept.pop(displaced, None)
        before, origin = self._seen.get(code, (0, exemplar.origin))
        self._seen[code] = before + count, min(origin, exemplar.origin)
        if code in self._whole and _is_first(exemplar, self._kept.get(code)):
            self._kept[code] = exemplar


def _is_first(prompt: Prompt, known: Prompt | None) -> bool:
    """True if the prompt is a signature's exemplar rather than the one `known` so far."""
    if known is None:
        return True
    if prompt.origin != known.origin:
        return prompt.origin < known.origin
    return _exemplar_order(prompt) < _exemplar_order(known)


def _exemplar_order(prompt: Prompt) -> tuple[tuple[str, ...], str, str]:
    """Sort key for prompts of one origin, such as requests of two corpora with different roles."""
    return tuple(item.path for item in prompt.items), prompt.request.text(), repr(prompt.request)
