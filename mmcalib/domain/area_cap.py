"""A cap of areas in pixels: the Qwen-VL family and its heirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from mmcalib.domain.media_option import Loaded, MediaOption, Value, Wanted
from mmcalib.domain.setting import Setting

if TYPE_CHECKING:
    from mmcalib.domain.shape_columns import Column, Shapes

# Of the corpus' own areas only the largest decide without loss.
_OWN = 4
# Caps that people use and can compare with, in tokens per image or frame.
_LADDER_TOKENS = (256, 512, 768, 1024, 1280, 2048, 4096, 8192, 16384)
# A video has many frames: a context may be too short for it with less than that each.
_FRAME_TOKENS = (32, 64, 128)
# Where these are fewer, equal parts of the corpus' largest area are tried as well.
_PARTS = 8
# Tokens per image: 3.2 and 1.0 megapixels for processors with 28 × 28 pixels to a token.
_IMAGE_TOKENS = (4_096, 1_280)
_SHARES = (4, 16)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AreaCap(MediaOption):
    """The most pixels of an image, of a frame or of a clip.

    `token_px` pixels make one token, None where that is not known. The least, `least_px`, must
    stand beside it as `least_name`.
    """

    kind: Literal["area"] = "area"
    token_px: int | None
    least_name: str
    least_px: int

    def values(self, items: Loaded, wanted: Wanted) -> list[Value]:
        """A ladder of tokens, and the areas at which the heaviest items just fit: as single
        pictures, and as the stack of frames that some processors bound instead. In pixels where it
        is not known how many make a token.
        """
        unit = self.token_px or 1
        nearest, above = items.shapes.areas(unit)
        areas = _distinct(nearest, above)
        volumes = _distinct(*_volumes(items, nearest, above))
        ceiling = max(areas | volumes, default=0)
        rungs = (*_FRAME_TOKENS, *_LADDER_TOKENS) if self.modality == "video" else _LADDER_TOKENS
        ladder = {unit * tokens for tokens in rungs if unit * tokens <= ceiling}
        fitting = {*ladder, *sorted(areas)[-_OWN:], *sorted(volumes)[-_OWN:]}
        kept = {value for value in fitting if self.least_px <= value < self.value}
        if len(kept) < _PARTS - 1:
            parts = {ceiling * part // _PARTS // unit * unit for part in range(1, _PARTS)}
            kept |= {value for value in parts if self.least_px <= value < self.value}
        if wanted.max_tokens_per_item is not None and self.token_px is not None:
            kept.add(self.token_px * wanted.max_tokens_per_item)
        return [*sorted(value for value in kept if value < self.value), self.value]

    def reductions(self) -> Iterator[tuple[Value, str]]:
        """Of an image in tokens, where they follow from it; else shares of what there is."""
        areas = [int(self.value) // share for share in _SHARES]
        if self.token_px is not None and self.modality == "image":
            areas = [tokens * self.token_px for tokens in _IMAGE_TOKENS]
        yield from ((area, self._price(area)) for area in areas if area >= self.least_px)

    def _price(self, area: int) -> str:
        if self.modality == "image":
            return f"images above {area / 1e6:.1f} megapixels are made smaller"
        return f"videos keep 1 pixel in {round(self.value / area)} of what they may have now"

    def companions(self, value: Value) -> dict[str, int]:
        return {self.least_name: int(min(self.least_px, value))}

    def changed(self, shapes: Shapes, value: Value) -> Column:
        nearest, above = shapes.areas(self.token_px or 1)
        return (nearest > value) & (above > value)

    def value_for_tokens(self, tokens: int) -> Value | None:
        return tokens * self.token_px if self.token_px else None

    def value_for_item(self, tokens: int) -> Value | None:
        """Of videos the pixels of a token are those of a frame."""
        return self.value_for_tokens(tokens) if self.modality == "image" else None

    def value_for_size(self, size: Mapping[str, int]) -> Value | None:
        if not self.token_px:
            return None
        tokens = size.get("width", 0) * size.get("height", 0) // self.token_px
        return tokens * self.token_px if tokens > self.least_px // self.token_px else None

    def scale(self, value: Value) -> str:
        """For images in tokens: raw pixels say little. Of videos some processors bound each frame
        and others all frames together, so pixels it is.
        """
        if self.token_px is None or self.modality == "video":
            return f"default {self.value}"
        tokens, default = (round(v // self.token_px) for v in (value, self.value))
        return f"{tokens} tokens per {self.modality}, default {default}"

    def bounds(self, setting: Setting) -> tuple[int, int]:
        """The least and the most pixels under the setting."""
        found: list[int] = []
        for name, default in ((self.least_name, self.least_px), (self.path[-1], self.value)):
            inner: Any = setting.mm_processor_kwargs
            for key in (*self.path[:-1], name):
                inner = inner.get(key) if isinstance(inner, Mapping) else None
            found.append(int(default if inner is None else inner))
        return found[0], found[1]


def _volumes(items: Loaded, nearest: Column, above: Column) -> tuple[Column, ...]:
    """The same for all frames that the loader keeps of a video."""
    if items.shapes.modality != "video" or not items.sampled.shape[1]:
        return ()
    frames = items.sampled[:, 0]
    known = frames >= 0
    return nearest[known] * frames[known], above[known] * frames[known]


def _distinct(*columns: Column) -> set[int]:
    """Without what has no area."""
    return {area for column in columns for area in map(int, {*column.flat})} - {0}
