"""What the encoder took over sizes of items, as `calibration.json` keeps it, and in words."""

from __future__ import annotations

from typing import Literal

from mmcalib.derive.encoder_curve import Curve
from mmcalib.result.part import DocumentPart


class EncoderPoint(DocumentPart):
    """One batch of `items` equal stand-ins; `tokens` and bytes are of all of them.

    `output_bytes` go into the encoder cache. `peak_bytes` are held at most above `input_bytes`,
    outputs included; `residual_bytes` of them are not in the fitted curve. Seconds are at the depth
    that was started. `rehearsed_bytes` are the rehearsed peak, inputs included.
    """

    shape: str
    items: int
    tokens: int
    output_bytes: int
    input_bytes: int
    peak_bytes: int
    residual_bytes: int | None
    seconds: float
    rehearsed_bytes: int | None = None


class UnsweptSize(DocumentPart):
    """A batch that was not encoded, and why."""

    shape: str
    items: int
    tokens: int
    reason: str


class EncoderCurve(DocumentPart):
    """Least squares: peak = constant + per token · tokens + per token² · tokens².

    `worst_residual` is the largest of single items, as a share of their highest peak.
    """

    constant_bytes: int
    bytes_per_token: float
    bytes_per_token_squared: float
    worst_residual: float
    label: Literal["computed"] = "computed"

    def at(self, tokens: float) -> float:
        """Bytes of a batch that makes so many tokens."""
        found = Curve(self.constant_bytes, self.bytes_per_token, self.bytes_per_token_squared)
        return found.at(tokens)


class ModalitySweep(DocumentPart):
    """`cap_tokens` is the largest item that the configuration admits; the curve is None with fewer
    than three sizes.
    """

    cap_tokens: int
    cache_bytes_per_token: float
    points: list[EncoderPoint]
    curve: EncoderCurve | None
    not_encoded: list[UnsweptSize]


class EncoderSweep(DocumentPart):
    """The encoder of the started engine, of `depth` of its `true_depth` layers; `gpu` is the one of
    the rehearsed peaks.

    A full encoder cache holds `cache_bytes`: `cache_tokens` of the most bytes per token.
    """

    device: str
    depth: int
    true_depth: int
    cache_tokens: int
    cache_bytes: int
    cache_label: Literal["computed"] = "computed"
    modalities: dict[str, ModalitySweep]
    gpu: str | None = None
    rehearsed_label: Literal["rehearsed"] = "rehearsed"
    label: Literal["measured"] = "measured"
