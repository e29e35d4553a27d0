"""From what the sweep encoded to the curve of each modality, as the reports show it."""

from __future__ import annotations

from collections.abc import Sequence

from mmcalib.derive.encoder_curve import Curve, fit, residuals
from mmcalib.domain.shapes import Modality
from mmcalib.gpus.gpu import Gpu
from mmcalib.result import encoder_sweep as c
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.memory.sizes import RehearsedSizes
from mmcalib.workflows.proof.startup import Started
from mmcalib.workflows.proof.sweep import Sweep, Swept, cap_tokens

_LATE = "it would take longer than --startup-budget"
_DIGITS = 3


def encoder_sweep(
    found: Sweep | None,
    started: Started | None,
    decision: Decision,
    rehearsed: RehearsedSizes,
    gpu: Gpu | None,
) -> c.EncoderSweep | None:
    """None where no sweep was asked for or nothing was encoded."""
    if found is None or started is None:
        return None
    modalities = {
        str(m): _modality(m, swept, found, decision, rehearsed)
        for m, swept in found.swept.items()
        if swept
    }
    if not modalities:
        return None
    cache_tokens = decision.budget.encoder_cache_size
    per_token = max(one.cache_bytes_per_token for one in modalities.values())
    return c.EncoderSweep(
        device=started.figures.device,
        depth=started.depths[1],
        true_depth=started.true_depths[1],
        cache_tokens=cache_tokens,
        cache_bytes=round(cache_tokens * per_token),
        modalities=modalities,
        gpu=gpu.name if gpu and rehearsed else None,
    )


def _modality(
    modality: Modality,
    swept: Sequence[Swept],
    found: Sweep,
    decision: Decision,
    rehearsed: RehearsedSizes,
) -> c.ModalitySweep:
    every = [(one.batch.tokens, one.run.peak_bytes) for one in swept]
    single = [point for point, one in zip(every, swept, strict=True) if one.batch.items == 1]
    # Where all items cost the same, only batches tell.
    fitted = single if fit(single) else every
    curve = fit(fitted)
    above: Sequence[float | None] = residuals(curve, every) if curve else [None] * len(every)
    late = [(batch, _LATE) for batch in found.left_out.get(modality, ())]
    return c.ModalitySweep(
        cap_tokens=cap_tokens(decision, modality),
        cache_bytes_per_token=max(one.run.output_bytes / one.batch.tokens for one in swept),
        points=[
            _point(one, rest, rehearsed.get((modality, one.batch)))
            for one, rest in zip(swept, above, strict=True)
        ],
        curve=_curve(curve, fitted) if curve else None,
        not_encoded=[
            c.UnsweptSize(
                shape=str(batch.sized.shape), items=batch.items, tokens=batch.tokens, reason=why
            )
            for batch, why in (*found.failed.get(modality, ()), *late)
        ],
    )


def _point(one: Swept, above: float | None, rehearsed_bytes: int | None) -> c.EncoderPoint:
    return c.EncoderPoint(
        shape=str(one.batch.sized.shape),
        items=one.batch.items,
        tokens=one.batch.tokens,
        output_bytes=one.run.output_bytes,
        input_bytes=one.run.input_bytes,
        peak_bytes=one.run.peak_bytes,
        residual_bytes=None if above is None else round(above),
        seconds=round(one.run.seconds, 2 * _DIGITS),
        rehearsed_bytes=rehearsed_bytes,
    )


def _curve(curve: Curve, points: Sequence[tuple[int, int]]) -> c.EncoderCurve:
    most = max(nbytes for _, nbytes in points)
    worst = max(map(abs, residuals(curve, points)))
    return c.EncoderCurve(
        constant_bytes=round(curve.constant_bytes),
        bytes_per_token=round(curve.bytes_per_token, _DIGITS),
        bytes_per_token_squared=round(curve.bytes_per_token_squared, 2 * _DIGITS),
        worst_residual=round(worst / most, 2 * _DIGITS) if most else 0.0,
    )
