"""The signatures whose prompts are kept whole: the heaviest, and some by chance."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from mmcalib.census.signature import PromptSignature
from mmcalib.census.signature_code import decode
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape

# As many as a replay admits.
PER_RANK = 256


def _weight(kind: type[Shape]) -> Callable[[PromptSignature], float]:
    return lambda signature: sum(_size(s) for s in signature.shapes if isinstance(s, kind))


def _size(shape: Shape) -> float:
    match shape:
        case ImageShape():
            return shape.width_px * shape.height_px
        case VideoShape():
            return shape.num_frames * shape.width_px * shape.height_px
        case AudioShape():
            return shape.duration_s


_RANKS: tuple[Callable[[PromptSignature], float], ...] = (
    _weight(ImageShape),
    _weight(VideoShape),
    _weight(AudioShape),
    lambda signature: len(signature.shapes),
    lambda signature: signature.text_chars,
    lambda signature: signature.asked.text_bytes + (signature.asked.answer_tokens or 0),
    lambda signature: 1,  # by chance alone
)

# A weight, a digest that decides between equals, whatever their order, and the signature's code.
_Place = tuple[float, bytes, bytes]


@dataclass(slots=True)
class Foremost:
    """At most `PER_RANK` signatures, by their codes, by each of several weights; the same ones in
    any order of arrival.
    """

    _heaps: tuple[list[_Place], ...] = field(default_factory=lambda: tuple([] for _ in _RANKS))
    _held: dict[bytes, int] = field(default_factory=dict)

    def __contains__(self, code: bytes) -> bool:
        return code in self._held

    def offer(self, code: bytes) -> list[bytes]:
        """A new signature, which may be kept; those that are kept no longer for it."""
        signature = decode(code)
        digest = hashlib.blake2b(repr(signature).encode(), digest_size=16).digest()
        gone = []
        for rank, heap in zip(_RANKS, self._heaps, strict=True):
            weight = rank(signature)
            if not weight:
                continue
            if len(heap) < PER_RANK:
                heapq.heappush(heap, (weight, digest, code))
            elif (weight, digest) > heap[0][:2]:
                _, _, out = heapq.heapreplace(heap, (weight, digest, code))
                self._held[out] -= 1
                if not self._held[out]:
                    del self._held[out]
                    gone.append(out)
            else:
                continue
            self._held[code] = self._held.get(code, 0) + 1
        return gone
