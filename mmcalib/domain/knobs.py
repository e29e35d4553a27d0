"""Setting and the six types of media options ("knobs")."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, final, get_args

from mmcalib.domain.shapes import Modality

if TYPE_CHECKING:
    from mmcalib.domain.shape_columns import Column, Shapes


def nest(path: Sequence[str], value: Any, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return kwargs with the value at its path, and others `beside` it."""
    inner: dict[str, Any] = {path[-1]: value, **beside}
    for key in reversed(path[:-1]):
        inner = {key: inner}
    return inner


def merge_nested(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `new` over `old`, nested mappings too; changes neither."""
    both = dict(old or {})
    for name, value in new.items():
        before = both.get(name)
        nested = isinstance(before, Mapping) and isinstance(value, Mapping)
        both[name] = merge_nested(before, value) if nested else value
    return both


@dataclass(frozen=True, slots=True)
class Setting:
    """`mm_processor_kwargs` and `media_io_kwargs` of one measurement; empty means the defaults."""

    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    media_io_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def engine_args(self) -> dict[str, Any]:
        """The arguments of vLLM's engine, without empty ones."""
        return {n: dict(kwargs) for n in get_args(Argument) if (kwargs := getattr(self, n))}

    @property
    def key(self) -> str:
        """Canonical JSON: equal for equal settings in any order of keys."""
        both = [dict(self.mm_processor_kwargs), dict(self.media_io_kwargs)]
        return json.dumps(both, sort_keys=True, separators=(",", ":"))


DEFAULT = Setting()


def merge_settings(settings: Iterable[Setting]) -> Setting:
    """Merge all their kwargs; settings of different knobs do not overlap."""
    kwargs: dict[str, Any] = {}
    media: dict[str, Any] = {}
    for setting in settings:
        kwargs = merge_nested(kwargs, setting.mm_processor_kwargs)
        media = merge_nested(media, setting.media_io_kwargs)
    return Setting(kwargs, media)


Value = int | float
Argument = Literal["mm_processor_kwargs", "media_io_kwargs"]


class LoadedItems(Protocol):
    """Items of one modality, and what vLLM's loader returns for each: a row of numbers."""

    @property
    def shapes(self) -> Shapes: ...
    @property
    def sampled(self) -> Column: ...
    @property
    def embeds(self) -> Column: ...


class ValuePolicy(Protocol):
    """The part of the user's policy that limits which values to try."""

    @property
    def max_tokens_per_item(self) -> int | None: ...
    @property
    def min_video_frames(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOption(ABC):
    """One option of the processor or loader that changes the cost of items of `modality`. `path`
    is where its value goes inside `argument`, outermost first. `bleeds`: other modalities that
    every effective spelling changes too.
    """

    argument: ClassVar[Argument] = "mm_processor_kwargs"

    modality: Modality
    path: tuple[str, ...]
    value: Value
    bleeds: tuple[Modality, ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def is_loader_option(self) -> bool:
        """It sets how much of an item the loader returns, before the processor runs."""
        return self.argument == "media_io_kwargs"

    @abstractmethod
    def values(self, items: LoadedItems, wanted: ValuePolicy) -> list[Value]:
        """Values to try for these items of its modality, ascending, with the default."""

    def reductions(self) -> Iterator[tuple[Value, str]]:
        """Values below the default that save memory, mildest first, each with its price. None for
        frames: only the owner can say how much of a video to skip.
        """
        yield from ()

    def setting(self, value: Value) -> Setting:
        """The setting for this value, with every option it requires."""
        return Setting(**{self.argument: self.kwargs(value)})

    def kwargs(self, value: Value) -> dict[str, Any]:
        """The kwargs for this value, inside its argument."""
        return nest(self.path, value, self.companions(value))

    def companions(self, value: Value) -> dict[str, int]:
        """The processor's other values that it requires with this one."""
        return {}

    def key_path(self, name: str = "") -> tuple[str, ...]:
        """Path to it, or to its sibling `name`, from its argument on."""
        return (self.argument, *self.path[:-1], name or self.path[-1])

    def changed_mask(self, shapes: Shapes, value: Value) -> Column:
        """Mask of the shapes whose cost this value may change."""
        return shapes.full_mask()

    def kept_pixels(self, items: LoadedItems, value: Value) -> Column | None:
        """Share of its pixels that each image keeps at this value, at which it was measured; None
        if unknown. Images that the default holds keep all, apart from rounding.
        """
        return None

    def value_for_tokens(self, tokens: int) -> Value | None:
        """The value that caps each image or frame at `tokens`; None if unknown."""
        return None

    def describe_value(self, value: Value) -> str:
        """The value relative to the default, for people."""
        return f"default {self.value}"


# Only the largest areas of the corpus decide without loss.
_LARGEST_AREAS = 4
# Caps that people use and can compare with, in tokens per image or frame.
_LADDER_TOKENS = (256, 512, 768, 1024, 1280, 2048, 4096, 8192, 16384)
# A video has many frames: a short context may need fewer tokens for each.
_FRAME_TOKENS = (32, 64, 128)
# With fewer values than this, also try equal parts of the corpus' largest area.
_PARTS = 8
# Tokens per image: 3.2 and 1.0 megapixels for processors with 28 × 28 pixels to a token.
_IMAGE_TOKENS = (4_096, 1_280)
_AREA_SHARES = (4, 16)
# Multiples of the default to try if it shrinks images.
_RISES = (1.5, 2, 3, 4, 6, 8, 12, 16)
_NEAR = 0.9


def _rises(value: Value, most: int) -> list[int]:
    """Values above the default, up to `most`, the value that shrinks nothing."""
    if most <= value:
        return []
    return [*(step for step in (int(value * rise) for rise in _RISES) if step < _NEAR * most), most]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AreaCap(MediaOption):
    """The most pixels of an image, frame or clip; `token_px` make one token, None if unknown. The
    processor also requires the minimum, `least_px`, as `least_name`.
    """

    token_px: int | None
    least_name: str
    least_px: int

    def values(self, items: LoadedItems, wanted: ValuePolicy) -> list[Value]:
        """A ladder of tokens, and areas that the largest items just fit, as images and as stacks
        of frames; in pixels if `token_px` is unknown. Above the default, up to the largest item.
        """
        unit = self.token_px or 1
        nearest, above = items.shapes.rounded_areas(unit)
        areas = _distinct(nearest, above)
        volumes: set[int] = set()
        if items.shapes.modality == "video":
            # The same for all frames that the loader returns, which processors pad to pairs.
            known = items.sampled[:, 0] >= 0
            frames = -(-items.sampled[known, 0] // 2) * 2
            volumes = _distinct(nearest[known] * frames, above[known] * frames)
        ceiling = max(areas | volumes, default=0)
        rungs = (*_FRAME_TOKENS, *_LADDER_TOKENS) if self.modality == "video" else _LADDER_TOKENS
        ladder = {unit * tokens for tokens in rungs if unit * tokens <= ceiling}
        largest = {*sorted(areas)[-_LARGEST_AREAS:], *sorted(volumes)[-_LARGEST_AREAS:]}
        values = {value for value in ladder | largest if self.least_px <= value < self.value}
        if len(values) < _PARTS - 1:
            parts = {ceiling * part // _PARTS // unit * unit for part in range(1, _PARTS)}
            values |= {value for value in parts if self.least_px <= value < self.value}
        if wanted.max_tokens_per_item is not None and self.token_px is not None:
            values.add(self.token_px * wanted.max_tokens_per_item)
        largest_px = int(nearest.max(initial=0)) if self.modality == "image" else ceiling
        below = sorted(value for value in values if value < self.value)
        return [*below, self.value, *([] if self.bleeds else _rises(self.value, largest_px))]

    def reductions(self) -> Iterator[tuple[Value, str]]:
        """Round numbers of tokens for an image if known; else shares of the default."""
        areas = [int(self.value) // share for share in _AREA_SHARES]
        if self.token_px is not None and self.modality == "image":
            areas = [tokens * self.token_px for tokens in _IMAGE_TOKENS]
        yield from ((area, self._price(area)) for area in areas if area >= self.least_px)

    def _price(self, area: int) -> str:
        if self.modality == "image":
            return f"images above {area / 1e6:.1f} megapixels shrink"
        return f"videos keep 1 pixel in {round(self.value / area)} of today's maximum"

    def companions(self, value: Value) -> dict[str, int]:
        return {self.least_name: int(min(self.least_px, value))}

    def changed_mask(self, shapes: Shapes, value: Value) -> Column:
        nearest, above = shapes.rounded_areas(self.token_px or 1)
        cap = min(value, self.value)
        return (nearest > cap) & (above > cap)

    def kept_pixels(self, items: LoadedItems, value: Value) -> Column | None:
        if self.modality != "image":
            return None
        return _share(value, items.shapes.rounded_areas(self.token_px or 1)[0])

    def value_for_tokens(self, tokens: int) -> Value | None:
        return tokens * self.token_px if self.token_px else None

    def value_for_size(self, size: Mapping[str, int]) -> Value | None:
        """The value that caps items at this size, named as in `limit_mm_per_prompt`."""
        if not self.token_px:
            return None
        tokens = size.get("width", 0) * size.get("height", 0) // self.token_px
        return tokens * self.token_px if tokens > self.least_px // self.token_px else None

    def describe_value(self, value: Value) -> str:
        """In tokens for images; in pixels for videos, as some processors cap whole clips."""
        if self.token_px is None or self.modality == "video":
            return f"default {self.value}"
        tokens, default = (round(v // self.token_px) for v in (value, self.value))
        return f"{tokens} tokens per {self.modality}, default {default}"

    def bounds(self, setting: Setting) -> tuple[int, int]:
        """The fewest and the most pixels under the setting."""
        limits: list[int] = []
        for name, default in ((self.least_name, self.least_px), (self.path[-1], self.value)):
            inner: Any = setting.mm_processor_kwargs
            for key in (*self.path[:-1], name):
                inner = inner.get(key) if isinstance(inner, Mapping) else None
            limits.append(int(default if inner is None else inner))
        return limits[0], limits[1]


def _distinct(*columns: Column) -> set[int]:
    """Collect the areas above zero."""
    return {area for column in columns for area in map(int, {*column.flat})} - {0}


# transformers enlarges no image beyond this (`MAX_IMAGE_SIZE` of Idefics3 and SmolVLM).
_LONGEST_EDGE_PX = 4096


def _share(most: Value | Column, sizes: Column) -> Column:
    """Share of each size that is within `most`."""
    share: Column = (most / sizes.clip(min=1)).clip(max=1)
    return share


def _long_edges(shapes: Shapes) -> Column:
    edges: Column = shapes.rows["width_px"].clip(min=shapes.rows["height_px"])
    return edges


# A layout of tiles with more of an image's pixels than this keeps it whole.
_LAID_OUT = 0.9
# Divisors of the default: how far a remedy lowers a knob.
_SHARES = (2, 4)
# Steps per frame per second when rounding a loader's `fps`.
_FPS_STEPS = 100


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCap(MediaOption):
    """The most pixels of the longer edge of a tiled image; `steps` are multiples, ascending."""

    modality: Literal["image"] = "image"
    steps: tuple[int, ...]

    def values(self, items: LoadedItems, wanted: ValuePolicy) -> list[Value]:
        """The steps, and whole tiles above them up to the longest edge of the images."""
        longest, tile = int(_long_edges(items.shapes).max(initial=0)), self.steps[0]
        last = min(-(-longest // tile) * tile, _LONGEST_EDGE_PX)
        return [*self.steps, *range(int(self.value) + tile, last + 1, tile)]

    def kept_pixels(self, items: LoadedItems, value: Value) -> Column | None:
        return _share(value, _long_edges(items.shapes)) ** 2

    def reductions(self) -> Iterator[tuple[Value, str]]:
        for edge in _fewer(self.steps, self.value):
            yield edge, f"images shrink to {edge:,} pixels at their longer edge, not {self.value:,}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TileCap(MediaOption):
    """The most tiles that an image is cut into, of `tile_px` pixels and `tile_embeds` embeds each;
    None if unknown. Of several tiles, one more shows the whole image.
    """

    modality: Literal["image"] = "image"
    tile_px: int | None = None
    tile_embeds: int | None = None

    def values(self, items: LoadedItems, wanted: ValuePolicy) -> list[Value]:
        """Every value up to the default, and larger ones for images that it shrinks: a layout of
        their proportions may need twice the tiles of their area.
        """
        largest = items.shapes.weights().max(initial=0)
        tiles = math.ceil(largest / self.tile_px) if self.tile_px else 0
        above = _rises(self.value, 2 * tiles if tiles > self.value else 0)
        return [*range(1, int(self.value) + 1), *above]

    def kept_pixels(self, items: LoadedItems, value: Value) -> Column | None:
        if self.tile_px is None:
            return None
        areas = items.shapes.weights()
        kept = _share(value * self.tile_px, areas)
        if self.tile_embeds is not None:
            tiles = items.embeds // self.tile_embeds
            kept = kept.clip(max=_share((tiles - (tiles > 1)) * self.tile_px, areas))
            kept[kept > _LAID_OUT] = 1
        kept[areas <= min(value, self.value) * self.tile_px] = 1
        return kept

    def reductions(self) -> Iterator[tuple[Value, str]]:
        for tiles in (int(self.value) // share for share in _SHARES):
            if tiles:
                yield tiles, f"an image is cut into at most {tiles} tiles, not {self.value}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CropCap(MediaOption):
    """The most crops of a narrow image besides the whole; `switch` enables the `steps`."""

    modality: Literal["image"] = "image"
    steps: tuple[int, ...]
    switch: str

    def values(self, items: LoadedItems, wanted: ValuePolicy) -> list[Value]:
        return list(self.steps)

    def reductions(self) -> Iterator[tuple[Value, str]]:
        for crops in dict.fromkeys((*_fewer(self.steps, self.value)[:1], 0)):
            most = f"at most {crops} crops" if crops else "no crops"
            instead = f", not {self.value}" if crops else ""
            yield crops, f"narrow images have {most} besides the whole{instead}"

    def kwargs(self, value: Value) -> dict[str, Any]:
        return nest(self.path, value, {self.switch: value > 0})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSampling(MediaOption):
    """The frames of a video that the loader returns; `steps` ascend to the default."""

    argument: ClassVar[Argument] = "media_io_kwargs"

    modality: Literal["video"] = "video"
    steps: tuple[Value, ...]

    def values(self, items: LoadedItems, wanted: ValuePolicy) -> list[Value]:
        """The steps, plus the value that keeps the frames that the user wants."""
        return sorted({*self.steps, *self._values_for_frames(items, wanted.min_video_frames)})

    def _values_for_frames(self, items: LoadedItems, wanted: int) -> Iterator[Value]:
        thin = subsampled_mask(items)
        if not thin.any() or items.sampled[thin, 0].min() >= wanted:
            return
        if self.path[-1] == "num_frames":
            yield wanted
            return
        frames, seconds = (items.shapes.rows[name] for name in ("num_frames", "duration_s"))
        timed = thin & (seconds > 0)
        if timed.any():
            most = (frames[timed].clip(max=wanted) / seconds[timed]).max()
            yield math.ceil(float(most) * _FPS_STEPS) / _FPS_STEPS

    def value_for_share(self, share: float) -> Value | None:
        """The value with which the loader returns that share of a video's frames."""
        value = self.value * share
        fewer = int(value) if value >= 1 else int(value * _FPS_STEPS) / _FPS_STEPS
        return fewer if fewer > 0 else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCap(MediaOption):
    """The most tokens of an image, from a short list: `steps`, ascending. The processor enlarges or
    shrinks every image to that many, of `token_px` pixels each, None if unknown.
    """

    modality: Literal["image"] = "image"
    steps: tuple[int, ...]
    token_px: int | None = None

    def values(self, items: LoadedItems, wanted: ValuePolicy) -> list[Value]:
        return list(self.steps)

    def kept_pixels(self, items: LoadedItems, value: Value) -> Column | None:
        if self.token_px is None:
            return None
        return _share(value * self.token_px, items.shapes.weights())

    def reductions(self) -> Iterator[tuple[Value, str]]:
        for tokens in _fewer(self.steps, self.value):
            yield tokens, f"an image takes at most {tokens} tokens, not {self.value}"

    def value_for_tokens(self, tokens: int) -> Value | None:
        return max((step for step in self.steps if step <= tokens), default=None)


Knob = AreaCap | EdgeCap | TileCap | CropCap | FrameSampling | TokenCap


def subsampled_mask(items: LoadedItems) -> Column:
    """Mask of videos from which the loader returns fewer frames than they have."""
    frames = items.sampled[:, 0]
    fewer: Column = (frames >= 0) & (frames < items.shapes.rows["num_frames"])
    return fewer


def _fewer(steps: Sequence[int], value: Value) -> list[int]:
    """The largest step within each share of the value."""
    shares = (value // share for share in _SHARES)
    within = ([step for step in steps if 0 < step <= most] for most in shares)
    return list(dict.fromkeys(max(candidates) for candidates in within if candidates))


# measured: from running vLLM. rehearsed: from vLLM's code on imaginary memory. computed: from
# measured values by vLLM's own rule. assumed: a default that you did not override. given: by you.
Label = Literal["measured", "rehearsed", "computed", "assumed", "given"]


def covering_count(share: float, count: int) -> int:
    """The smallest number that is at least this share of `count`."""
    # The product of a decimal share and a count may lie a rounding error above a whole number.
    return math.ceil(round(share * count, 9))
