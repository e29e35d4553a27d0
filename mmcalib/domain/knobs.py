"""The options of a model's processor and loader that change what items cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mmcalib.domain.shapes import Modality

# Pixels of an image, a frame or a clip; pixels of an image's longer edge; tiles that an image is
# cut into; crops beside the whole image, 0 for none; frames that are kept, or frames a second.
KnobKind = Literal["area", "edge", "tiles", "crops", "frames"]


@dataclass(frozen=True, slots=True)
class Knob:
    """One option of the model's processor or loader that changes what an item of `modality` costs.

    `kind` is what its value counts; `path` is where it goes inside `argument`, outermost first;
    `value` its default; `unit_tokens` how many of its units make one token, None where tokens do
    not follow from it; `companions` are values that must stand beside it (the other edge of a
    size); `steps` are the values worth trying, ascending, of edges, crops and frames. `switch` is a
    boolean that must stand beside it, true unless the value is 0. `bleeds`: the other modalities
    whose items it moves too, in every spelling that is heeded.
    """

    name: str
    modality: Modality
    path: tuple[str, ...]
    value: int | float
    unit_tokens: int | None
    companions: dict[str, int] = field(default_factory=dict)
    argument: Literal["mm_processor_kwargs", "media_io_kwargs"] = "mm_processor_kwargs"
    steps: tuple[int | float, ...] = ()
    switch: str = ""
    bleeds: tuple[Modality, ...] = ()
    kind: KnobKind = field(kw_only=True)
