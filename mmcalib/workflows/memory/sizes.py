"""The items of the encoder sweep on the imaginary GPU: each as a startup profile of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.checks.catalogue.memory import SIZES_REHEARSED
from mmcalib.checks.check import Check
from mmcalib.checks.configuration import Configuration
from mmcalib.derive.encoder_sizes import EncoderBatch
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.workflows.memory.accuracy import ENCODER_OFF, same_gpu
from mmcalib.workflows.memory.cured import Ask
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.proof.startup import Started
from mmcalib.workflows.proof.sweep import Sweep

# Below, what kernels round up to counts for more than the items.
_TOKENS = 1000

# Bytes per batch of one item of a modality.
RehearsedSizes = Mapping[tuple[Modality, EncoderBatch], int]


def rehearsed_sizes(
    every: Ask, decision: Configuration, found: Sweep
) -> dict[tuple[Modality, EncoderBatch], int]:
    """The encoder's peak, inputs included, for every single item that was encoded, as `every`
    rehearses it; those whose dummy would not be of the same tokens are left out.
    """
    wanted = [
        (modality, one.batch)
        for modality, swept in found.swept.items()
        for one in swept
        if one.batch.items == 1
    ]
    answers = every([_profiling(decision, m, b.sized.shape) for m, b in wanted], ())
    peaks = {}
    for key, answer in zip(wanted, answers, strict=True):
        if answer is None or answer.encoder_tokens != key[1].tokens:
            continue
        peak = [phase.peak_bytes for phase in answer.phases if phase.name == "encoder"]
        if peak:
            peaks[key] = peak[0]
    return peaks


def on_the_same_gpu(predicted: Predicted, started: Started | None) -> bool:
    """Whether the sweep ran where the rehearsals imagine it: other kernels take other memory."""
    after, gpu = predicted.calibrated, started.figures.gpu if started else None
    return after is not None and gpu is not None and same_gpu(after, gpu)


def sizes_check(rehearsed: RehearsedSizes, found: Sweep) -> Check | None:
    """Rehearsed peaks against those of the GPU that they are of; None where no size has both.

    An item of a thousand tokens or more may be off by what an encoder's peak may, and the largest
    must not take more than was rehearsed.
    """
    compared, missed = 0, []
    for modality, swept in found.swept.items():
        largest = max((one.batch.tokens for one in swept if one.batch.items == 1), default=0)
        for one in swept:
            ours = rehearsed.get((modality, one.batch))
            theirs, tokens = one.run.peak_bytes + one.run.input_bytes, one.batch.tokens
            if ours is None or not theirs or (tokens < _TOKENS and tokens < largest):
                continue
            compared += 1
            off = ours / theirs - 1
            if abs(off) > ENCODER_OFF or (tokens == largest and off < 0):
                missed.append(f"{modality} of {tokens:,} tokens by {off:+.1%}")
    if not compared:
        return None
    sizes = "1 size" if compared == 1 else f"{compared} sizes"
    detail = f"{sizes} of {_TOKENS:,} tokens or more, and the largest, measured and rehearsed"
    if missed:
        return Check(SIZES_REHEARSED, "warn", f"{detail}; off: {', '.join(missed)}")
    return Check(
        SIZES_REHEARSED, "pass", f"{detail}: within {ENCODER_OFF:.0%}, the largest not below"
    )


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
