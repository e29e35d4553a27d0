"""What `mmcalib check --json` prints: a line for each that does not fit, and a summary."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from mmcalib.derive.admission import Answer, Basis
from mmcalib.domain.shape_codec import to_tagged
from mmcalib.result.checked import Checked, Tally
from mmcalib.result.part import DocumentPart


class CheckedImage(DocumentPart):
    modality: Literal["image"]
    width_px: int
    height_px: int


class CheckedVideo(DocumentPart):
    modality: Literal["video"]
    num_frames: int
    fps: float
    duration_s: float
    width_px: int
    height_px: int


class CheckedAudio(DocumentPart):
    modality: Literal["audio"]
    num_samples: int
    sample_rate_hz: int


CheckedShape = Annotated[
    CheckedImage | CheckedVideo | CheckedAudio, Field(discriminator="modality")
]


class Offender(DocumentPart):
    """One item or request that does not fit, on a line of its own."""

    kind: Literal["item", "prompt"]
    origin: str
    answer: Answer
    tokens: int | None
    embeds: int | None
    exact: bool
    basis: Basis
    reason: str
    remedy: str
    largest: CheckedShape | None
    shapes: list[CheckedShape]

    @classmethod
    def of(cls, checked: Checked) -> Self:
        """Of what does not fit."""
        found = checked.admission
        return cls.model_validate(
            {
                "kind": checked.kind,
                "origin": checked.origin,
                "answer": found.answer,
                "tokens": found.tokens,
                "embeds": found.embeds,
                "exact": found.exact,
                "basis": found.basis,
                "reason": found.reason,
                "remedy": found.remedy,
                "largest": to_tagged(found.largest) if found.largest else None,
                "shapes": [to_tagged(shape) for shape in checked.shapes],
            }
        )


class Summary(DocumentPart):
    """The last line of a check; `share` of what was checked does not fit."""

    kind: Literal["summary"]
    all_fit: bool
    share: float
    checked: int
    skipped: int
    fits: int
    no: int
    unknown: int

    @classmethod
    def of(cls, tally: Tally, *, all_fit: bool, share: float) -> Self:
        """Counts, whether the data fits as a whole, and the share that does not."""
        return cls(
            kind="summary",
            all_fit=all_fit,
            share=share,
            checked=tally.checked,
            skipped=tally.skipped,
            **tally.answers,
        )
