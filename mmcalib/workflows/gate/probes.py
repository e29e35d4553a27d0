"""Shapes at which a wrong rule would show: roundings, caps, extreme sides, layouts, lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmcalib.derive.bounds import Area
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.releases.constants import QWEN_MOST_ASPECT, QWEN_MOST_FRAMES

# Larger blanks take longer than they tell.
_MOST_PX = 16_000_000
_CLIP_PX = 30_000_000
# Every layout of up to 12 tiles (InternVL's `max_dynamic_patch`), and the largest of up to 6×6
# (LLaVA-OneVision).
_TILES, _SQUARE = 12, 6
# The largest tile edge that is known (InternVL's; others have 336 and 384).
_TILE_PX = 448
# (short side at least, aspect ratio at most): the most generous first.
DOMAINS: Sequence[tuple[int, float]] = ((1, QWEN_MOST_ASPECT), (8, 100.0), (28, 50.0), (28, 20.0))
_LARGE_PX = 4000
_SHORT_SECONDS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2)
_SECONDS = (*_SHORT_SECONDS, 3, 4, 5, 6, 8, 10, 12, 15, 18, 21, 25, 30, 31)
_LONG_SECONDS = (45, 60, 90, 120, 180, 240, 300, 301, 450, 600)
# Ladders reach this much beyond the longest clip of the corpus, in many steps; and in one as far as
# the server decodes at all (VLLM_MAX_AUDIO_DECODE_DURATION_S, vllm/envs.py of 0.32).
_BEYOND = 2.0


def pictures(area: Area) -> list[ImageShape]:
    """Around half cells, both pixel bounds, and the aspect ratio that is refused."""
    cell, half = area.factor_px, area.factor_px // 2
    aspect = int(area.max_aspect)
    cap, floor = math.isqrt(area.max_px), math.isqrt(area.min_px)
    sizes = [
        *((1, 1), (1, 2), (half, half), (half - 1, cell), (half, 3 * cell), (cell - 1, cell + 1)),
        *((cell + half, 2 * cell + half), (3 * cell + half, 5 * cell + half + 1)),
        *((7, 7 * aspect), (7 * aspect, 7), (7, 7 * aspect + 1), (7 * aspect + 7, 7), (1, aspect)),
        *((floor, floor), (floor - 1, floor), (floor // 2, 2 * floor), (floor + 1, floor - 2)),
        *((cap, cap), (cap - 1, cap + 2), (cap + half, cap + half), (cap // 2, 2 * cap + cell)),
        *((cap // 3, 4 * cap), (round(cap * 1.7), round(cap * 0.61)), (2 * cap, cap)),
        *((640, 480), (1000, 750), (1080, 1920), (1279, 721), (3, 500), (2001, 11)),
    ]
    return _images(sizes)


def layouts() -> list[ImageShape]:
    """One picture for every layout of tiles that a processor may choose, and some between."""
    each = range(1, _TILES + 1)
    tiles = {(a, d) for a in each for d in each if a * d <= _TILES}
    tiles |= {(a, d) for a in (_SQUARE - 1, _SQUARE) for d in (_SQUARE - 1, _SQUARE)}
    sizes = [(a * _TILE_PX, d * _TILE_PX) for a, d in sorted(tiles)]
    between = [(640, 480), (480, 641), (1080, 1920), (333, 1111), (2222, 777), (100, 100), (37, 53)]
    return _images([*sizes, *between])


def corners(side_px: int, aspect: float) -> list[ImageShape]:
    """The extremes of a domain: smallest and large, square, flat and tall."""
    long, thin = int(side_px * aspect), max(side_px, math.ceil(_LARGE_PX / aspect))
    sizes = [
        *((side_px, side_px), (side_px, long), (long, side_px), (side_px + 1, side_px)),
        *((thin, int(thin * aspect)), (int(thin * aspect), thin), (2 * side_px, 3 * side_px)),
    ]
    return _images(sizes)


def clips(area: Area | None) -> list[VideoShape]:
    """Few, odd and many frames at several rates; large and small frames; both pixel bounds."""
    made = [
        *(_clip(n, 10.0, 56, 84) for n in (1, 2, 3, 4, 5, 7, 9, 31, 33)),
        _clip(8, 8.0, 64, 64),
        _clip(100, 25.0, 320, 240),
        _clip(100, 25.0, 640, 362),
        _clip(451, 30.0, 84, 56),
        _clip(451, 29.97, 98, 126),
        _clip(900, 23.976, 57, 43),
        _clip(24000, 30.0, 32, 32),
        _clip(12, 6.0, 8, 8),
        _clip(12, 6.0, 20, 300),
    ]
    if area is not None:
        cap, floor, cell = math.isqrt(area.max_px), math.isqrt(area.min_px), area.factor_px
        slim = int(area.max_aspect)
        made += [
            *(_clip(2, 2.0, w, h) for w, h in ((cap, cap), (cap + cell, cap - 3), (2 * cap, cap))),
            *(
                _clip(4, 4.0, w, h)
                for w, h in ((floor, floor), (floor - 3, floor), (cap // 2, cap))
            ),
            *(_clip(4, 4.0, w, h) for w, h in ((8, 8 * slim), (8, 8 * slim + 8))),
            _clip(64, 4.0, cap // 4, cap // 4),
            _clip(33, 4.0, cap // 3, cap // 5),
        ]
    return list(dict.fromkeys(clip for clip in made if _weight(clip) <= _CLIP_PX))


def sounds(rate_hz: int, longest_s: float) -> list[AudioShape]:
    """Lengths in ascending order, at the rate to which the server resamples."""
    most = _BEYOND * longest_s
    steps = [s for s in (*_SECONDS, *_LONG_SECONDS) if s <= max(most, _SECONDS[-1])]
    steps += _LONG_SECONDS[-1:] if steps[-1] < _LONG_SECONDS[-1] else ()
    return [AudioShape(round(seconds * rate_hz), rate_hz) for seconds in steps]


def _clip(frames: int, fps: float, width: int, height: int) -> VideoShape:
    return VideoShape(frames, fps, frames / fps, max(1, width), max(1, height))


def _weight(clip: VideoShape) -> int:
    """Pixels that a loader may keep: no known one keeps more frames than that of Qwen-VL."""
    return min(QWEN_MOST_FRAMES, clip.num_frames) * clip.width_px * clip.height_px


def _images(sizes: Sequence[tuple[int, int]]) -> list[ImageShape]:
    kept = [(w, h) for w, h in sizes if w > 0 and h > 0 and w * h <= _MOST_PX]
    return [ImageShape(w, h) for w, h in dict.fromkeys(kept)]
