"""One batch through the started engine's encoder."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.domain.encoder_run import EncoderRun
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.engine.messages.message import Reply, Request


@dataclass(frozen=True, slots=True)
class BatchEncoded(Reply):
    """The run, or the reason why there is none."""

    run: EncoderRun | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Encode(Request[BatchEncoded]):
    """Encode `items` equal blank stand-ins of the shape in one batch, in the started engine.

    The engine must have been started with `setting`. Refused where the host's memory does not hold
    `expected_bytes`, unless another device runs the encoder.
    """

    setting: Setting
    modality: Modality
    shape: Shape
    items: int = 1
    expected_bytes: int = 0
