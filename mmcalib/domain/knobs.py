"""The knobs there are: a type each, which knows its values, its spelling and its words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final, get_args

from mmcalib.domain.area_cap import AreaCap
from mmcalib.domain.media_option import Argument, Loaded, MediaOption, Value, Wanted
from mmcalib.domain.setting import Setting

if TYPE_CHECKING:
    from mmcalib.domain.shape_columns import Column

# Of the default: how far a fix turns a knob down.
_SHARES = (2, 4)
# In which a loader's frames per second are written.
_FPS_STEPS = 100


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCap(MediaOption):
    """The most pixels of an image's longer edge, where it is cut into tiles of one size.

    `steps` are the multiples of a tile's edge, ascending.
    """

    kind: Literal["edge"] = "edge"
    modality: Literal["image"] = "image"
    steps: tuple[int, ...]

    def values(self, items: Loaded, wanted: Wanted) -> list[Value]:
        return list(self.steps)

    def reductions(self) -> Iterator[tuple[Value, str]]:
        for edge in _fewer(self.steps, self.value):
            price = f"images are made smaller, to {edge:,} pixels at their longer edge, not "
            yield edge, f"{price}{self.value:,}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TileCap(MediaOption):
    """The most tiles that an image is cut into."""

    kind: Literal["tiles"] = "tiles"
    modality: Literal["image"] = "image"

    def values(self, items: Loaded, wanted: Wanted) -> list[Value]:
        return list(range(1, int(self.value) + 1))

    def reductions(self) -> Iterator[tuple[Value, str]]:
        for tiles in (int(self.value) // share for share in _SHARES):
            if tiles:
                yield tiles, f"an image is cut into at most {tiles} tiles, not {self.value}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CropCap(MediaOption):
    """The most crops of a slim image beside the whole one, 0 for none.

    `steps` are the numbers that there can be, ascending; `switch` names what turns cropping on.
    """

    kind: Literal["crops"] = "crops"
    modality: Literal["image"] = "image"
    steps: tuple[int, ...]
    switch: str

    def values(self, items: Loaded, wanted: Wanted) -> list[Value]:
        return list(self.steps)

    def reductions(self) -> Iterator[tuple[Value, str]]:
        for crops in dict.fromkeys((*_fewer(self.steps, self.value)[:1], 0)):
            most = f"at most {crops} crops" if crops else "no crops"
            instead = f", not {self.value}" if crops else ""
            yield crops, f"slim images have {most} beside the whole{instead}"

    def switches(self, value: Value) -> dict[str, bool]:
        return {self.switch: value > 0}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSampling(MediaOption):
    """How many frames the loader keeps of a video: `num_frames` of each, or `fps` of them.

    `steps` are parts of the default, ascending.
    """

    argument: ClassVar[Argument] = "media_io_kwargs"

    kind: Literal["frames"] = "frames"
    modality: Literal["video"] = "video"
    steps: tuple[Value, ...]

    def values(self, items: Loaded, wanted: Wanted) -> list[Value]:
        """The steps, and what keeps the frames that are wanted, where the default does not."""
        return sorted({*self.steps, *self._raised(items, wanted.min_video_frames)})

    def _raised(self, items: Loaded, wanted: int) -> Iterator[Value]:
        thin = thinned(items)
        if not thin.any() or items.sampled[thin, 0].min() >= wanted:
            return
        if self.path[-1] == "num_frames":
            yield wanted
            return
        frames, seconds = (items.shapes.columns[name] for name in ("num_frames", "duration_s"))
        timed = thin & (seconds > 0)
        if timed.any():
            most = (frames[timed].clip(max=wanted) / seconds[timed]).max()
            yield math.ceil(float(most) * _FPS_STEPS) / _FPS_STEPS

    def reductions(self) -> Iterator[tuple[Value, str]]:
        """None: how much of a video is looked at is for its owner to say."""
        yield from ()

    def given(self, setting: Setting) -> bool:
        """Any other option of the loader may decide how many frames this one keeps."""
        return self.path[0] in setting.media_io_kwargs

    def value_for_share(self, share: float) -> Value | None:
        value = self.value * share
        fewer = int(value) if value >= 1 else int(value * _FPS_STEPS) / _FPS_STEPS
        return fewer if fewer > 0 else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCap(MediaOption):
    """The most tokens of an image, where they are one of few numbers.

    `steps` are those numbers, ascending.
    """

    kind: Literal["tokens"] = "tokens"
    modality: Literal["image"] = "image"
    steps: tuple[int, ...]

    def values(self, items: Loaded, wanted: Wanted) -> list[Value]:
        return list(self.steps)

    def reductions(self) -> Iterator[tuple[Value, str]]:
        for tokens in _fewer(self.steps, self.value):
            yield tokens, f"an image takes at most {tokens} tokens, not {self.value}"

    def value_for_tokens(self, tokens: int) -> Value | None:
        return max((step for step in self.steps if step <= tokens), default=None)

    def value_for_item(self, tokens: int) -> Value | None:
        return self.value_for_tokens(tokens)


Knob = AreaCap | EdgeCap | TileCap | CropCap | FrameSampling | TokenCap
# In the order in which they are looked for.
KNOBS: tuple[type[Knob], ...] = get_args(Knob)


def thinned(items: Loaded) -> Column:
    """Of each whether it is a video of which the loader keeps fewer frames than it has."""
    if items.shapes.modality != "video" or not items.sampled.shape[1]:
        return items.shapes.mask(False)
    kept = items.sampled[:, 0]
    fewer: Column = (kept >= 0) & (kept < items.shapes.columns["num_frames"])
    return fewer


def _fewer(steps: Sequence[int], value: Value) -> list[int]:
    """The largest step that is no more than each share of the value."""
    shares = (value // share for share in _SHARES)
    within = ([step for step in steps if 0 < step <= most] for most in shares)
    return list(dict.fromkeys(max(found) for found in within if found))
