"""The items of the encoder sweep on the imaginary GPU: each as a startup profile of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.census.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.derive.encoder_sizes import Batch
from mmcalib.job.configuration import Configuration
from mmcalib.job.memory.predict import Predictor
from mmcalib.job.proof.sweep import Sweep

# Bytes per batch of one item of a modality.
RehearsedSizes = Mapping[tuple[Modality, Batch], int]


def rehearsed_sizes(
    predictor: Predictor, decision: Configuration, found: Sweep
) -> dict[tuple[Modality, Batch], int]:
    """The encoder's peak, inputs included, for every single item that was encoded; those whose
    dummy would not be of the same tokens are left out.
    """
    wanted = [
        (modality, one.batch)
        for modality, swept in found.swept.items()
        for one in swept
        if one.batch.items == 1
    ]
    answers = predictor.more([_profiling(decision, m, b.sized.shape) for m, b in wanted])
    peaks = {}
    for key, answer in zip(wanted, answers, strict=True):
        if answer is None or answer.encoder_tokens != key[1].tokens:
            continue
        peak = [phase.peak_bytes for phase in answer.phases if phase.name == "encoder"]
        if peak:
            peaks[key] = peak[0]
    return peaks


def _profiling(decision: Configuration, modality: Modality, shape: Shape) -> dict[str, Any]:
    """Engine arguments under which vLLM profiles one item of this shape."""
    only = {m: {"count": 1, **_hint(shape)} if m == modality else 0 for m in decision.counts}
    args = {k: v for k, v in decision.engine_args.items() if k != "skip_mm_profiling"}
    return {**args, "limit_mm_per_prompt": only, "max_num_seqs": 1}


def _hint(shape: Shape) -> dict[str, int]:
    match shape:
        case ImageShape(width_px=width, height_px=height):
            return {"width": width, "height": height}
        case VideoShape(num_frames=frames, width_px=width, height_px=height):
            return {"num_frames": frames, "width": width, "height": height}
        case AudioShape(num_samples=samples):
            return {"length": samples}
