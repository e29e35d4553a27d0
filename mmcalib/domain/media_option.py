"""What every knob is: an option of vLLM's, its place and its default; and what is asked of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality

if TYPE_CHECKING:
    from mmcalib.domain.shape_columns import Column, Shapes

Value = int | float
Argument = Literal["mm_processor_kwargs", "media_io_kwargs"]


class Loaded(Protocol):
    """Items of one modality, and what vLLM's loader hands over of each: a row of numbers."""

    @property
    def shapes(self) -> Shapes: ...
    @property
    def sampled(self) -> Column: ...


class Wanted(Protocol):
    """What of the user's policy bears on the values that are tried."""

    @property
    def max_tokens_per_item(self) -> int | None: ...
    @property
    def min_video_frames(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOption(ABC):
    """One option of the model's processor or loader that changes what an item of `modality` costs.

    `path` is where its value goes inside `argument`, outermost first; `value` its default.
    `bleeds`: the other modalities whose items it moves too, in every spelling that is heeded. Each
    type has a `kind` of its own, by which it is known on the wire.
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
    def by_loader(self) -> bool:
        """Whether it says how much of an item is looked at, which is for its owner to say, and
        which decides what the processor's options do to it.
        """
        return self.argument == "media_io_kwargs"

    @abstractmethod
    def values(self, items: Loaded, wanted: Wanted) -> list[Value]:
        """Values to try on these items of its modality, ascending; the default among them."""

    @abstractmethod
    def reductions(self) -> Iterator[tuple[Value, str]]:
        """Values that save memory, the mildest first, and what each costs the user. What is not
        below the default saves none.
        """

    def setting(self, value: Value) -> Setting:
        """What gives it this value, with all that must stand beside it."""
        return Setting(**{self.argument: self.kwargs(value)})

    def kwargs(self, value: Value) -> dict[str, Any]:
        """The same inside its argument."""
        *outer, leaf = self.path
        inner: dict[str, Any] = {leaf: value, **self.companions(value), **self.switches(value)}
        for key in reversed(outer):
            inner = {key: inner}
        return inner

    def companions(self, value: Value) -> dict[str, int]:
        """Values of the processor's own without which others refuse this one."""
        return {}

    def switches(self, value: Value) -> dict[str, bool]:
        """What turns on or off that it is heeded at all."""
        return {}

    def place(self, name: str = "") -> tuple[str, ...]:
        """The way to it, or to what stands beside it, from its argument on."""
        return (self.argument, *self.path[:-1], name or self.path[-1])

    def given(self, setting: Setting) -> bool:
        """Whether the user has turned it, or what it depends on."""
        return False

    def changed(self, shapes: Shapes, value: Value) -> Column:
        """Of each of these whether this value may change what it costs."""
        return shapes.mask(True)

    def value_for_tokens(self, tokens: int) -> Value | None:
        """The value that caps each image or frame at so many tokens; None where tokens do not
        follow from it.
        """
        return None

    def value_for_item(self, tokens: int) -> Value | None:
        """The same for whole items: of a video, all its frames."""
        return None

    def value_for_size(self, size: Mapping[str, int]) -> Value | None:
        """The value that caps items at this size, named as in `limit_mm_per_prompt`."""
        return None

    def value_for_share(self, share: float) -> Value | None:
        """The value with which the loader hands over that share of an item."""
        return None

    def scale(self, value: Value) -> str:
        """A value against the default, in words."""
        return f"default {self.value}"
