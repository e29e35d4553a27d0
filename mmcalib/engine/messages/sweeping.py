"""One batch through the started engine's encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmcalib.census.shapes import Modality
from mmcalib.engine.messages.measuring import WireShape
from mmcalib.engine.setting import Setting


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode `items` equal blank stand-ins of the shape in one batch, in the started engine.

    The engine must have been started with `setting`. Refused where the host's memory does not hold
    `expected_bytes`, unless another device runs the encoder.
    """

    setting: Setting
    modality: Modality
    shape: WireShape
    items: int = 1
    expected_bytes: int = 0
    kind: Literal["encode"] = "encode"


@dataclass(frozen=True, slots=True)
class EncoderRun:
    """What one batch took: `embeds` are of one item, bytes of all of them.

    `output_bytes` are what goes into vLLM's encoder cache, `input_bytes` the batched tensors that
    the encoder is given. `peak_bytes` is the most held at once above these, outputs included.
    """

    embeds: int
    output_bytes: int
    input_bytes: int
    peak_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Encoded:
    """The run, or the reason why there is none."""

    run: EncoderRun | None
    error: str = ""
    kind: Literal["encoded"] = "encoded"
