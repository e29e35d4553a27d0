"""The engine start and the replay, as `calibration.json` keeps them."""

from __future__ import annotations

from mmcalib.result.part import DocumentPart


class ReplayResult(DocumentPart):
    """`prompts` were answered in one burst; they and others, `admitted` in all, were taken in."""

    prompts: int
    admitted: int = 0
    rejected: int
    oom: int
    token_mismatches: int
    encoder_tokens: int
    largest_encoder_step_tokens: int
    left_out: int
    seconds: float


class Startup(DocumentPart):
    """The real engine start; `depth` and `true_depth` are layers (language model, encoder)."""

    device: str
    depth: tuple[int, int]
    true_depth: tuple[int, int]
    seconds: float
    figures: dict[str, float | int | None]
    replay: ReplayResult | None = None
