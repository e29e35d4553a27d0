"""Which stand-ins the encoder sweep encodes: sizes from small to the cap, and batches of one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.releases.constants import QWEN_FRAMES_TOGETHER, VIDEO_FPS

# Enough to tell a line from a curve, with some to spare where two fall together.
SIZES = 10
# The smallest is this much below the largest: smaller ones take no memory that matters.
_SPAN = 64
# Tried for each, because tokens come in steps that only the model knows.
_TRIED = 28
# Batches of the middle size, and of the only one where all items cost the same.
_BATCHES, _ONLY_BATCHES = (2, 4), (2, 3, 4, 6, 8, 12, 16, 24, 32)
# The largest tile edge that is known (InternVL's; others have 336 and 384).
TILE_PX: Final = 448
# Layouts of tiles as strips and blocks.
_LAYOUTS = [*((n, 1) for n in range(1, 13)), (2, 2), (3, 2), (4, 2), (5, 2), (3, 3), (4, 3)]


@dataclass(frozen=True, slots=True)
class Sized:
    """A stand-in and the encoder-cache entries that it takes."""

    shape: Shape
    embeds: int


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """So many equal stand-ins at once."""

    sized: Sized
    items: int = 1

    @property
    def tokens(self) -> int:
        return self.sized.embeds * self.items


def candidates(
    modality: Modality,
    largest: Mapping[str, int],
    *,
    audio_rate_hz: int | None = None,
    tiled: bool = False,
) -> list[Shape]:
    """Shapes of about the size named `largest` (by vLLM's hint names) and below, smallest first."""
    shares = [_SPAN ** (place / (_TRIED - 1) - 1) for place in range(_TRIED)]
    match modality:
        case "image":
            sides = [
                (largest["width"] * math.sqrt(s), largest["height"] * math.sqrt(s)) for s in shares
            ]
            tiles = [(a * TILE_PX, d * TILE_PX) for a, d in _LAYOUTS] if tiled else []
            found: list[Shape] = [ImageShape(_px(w), _px(h)) for w, h in (*tiles, *sides)]
        case "video":
            found = [_clip(largest, share) for share in shares]
        case "audio":
            rate = audio_rate_hz or 0
            found = [AudioShape(round(largest["length"] * s), rate) for s in shares if rate]
    return list(dict.fromkeys(found))


def _clip(largest: Mapping[str, int], share: float) -> VideoShape:
    """Fewer frames first; below two of them, smaller ones."""
    wanted = largest["num_frames"] * share
    frames = max(QWEN_FRAMES_TOGETHER, round(wanted / QWEN_FRAMES_TOGETHER) * QWEN_FRAMES_TOGETHER)
    side = math.sqrt(min(1.0, wanted / frames))
    width, height = _px(largest["width"] * side), _px(largest["height"] * side)
    # A loader that samples by time keeps every frame of a clip at this rate, and one that takes a
    # number of frames does not care.
    return VideoShape(frames, float(VIDEO_FPS), frames / VIDEO_FPS, width, height)


def _px(side: float) -> int:
    return max(1, round(side))


def sizes(tried: Sequence[Sized], cap_tokens: int) -> list[Sized]:
    """At most `SIZES` of them, all of different embeds up to the cap, as evenly apart in the
    logarithm as they come; smallest first, the largest always among them.
    """
    by_embeds = {one.embeds: one for one in tried if 0 < one.embeds <= cap_tokens}
    if not by_embeds:
        return []
    most = max(by_embeds)
    left = sorted(embeds for embeds in by_embeds if embeds * _SPAN >= most)
    chosen = {most}
    low = left[0]
    for place in range(SIZES):
        wanted = low * (most / low) ** (place / (SIZES - 1))
        free = [embeds for embeds in left if embeds not in chosen]
        if free and len(chosen) < SIZES:
            chosen.add(min(free, key=lambda embeds: abs(math.log(embeds / wanted))))
    return [by_embeds[embeds] for embeds in sorted(chosen)]


def batches(chosen: Sequence[Sized], budget_tokens: int) -> list[EncoderBatch]:
    """Each size alone, and several of one: of that nearest to a quarter of the largest, or, where
    all items cost the same, of that. As one step may hold them; fewest tokens first.
    """
    found = [EncoderBatch(one) for one in chosen]
    if chosen:
        quarter = chosen[-1].embeds / _BATCHES[-1]
        fitting = [one for one in chosen if one.embeds * _BATCHES[-1] <= budget_tokens] or chosen
        several = min(fitting, key=lambda one: abs(math.log(one.embeds / quarter)))
        counts = _BATCHES if len(chosen) > 1 else _ONLY_BATCHES
        found += [EncoderBatch(several, n) for n in counts if n * several.embeds <= budget_tokens]
    return sorted(found, key=lambda batch: (batch.tokens, batch.items))
