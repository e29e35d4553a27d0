"""The encoder sweep in words."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import wording
from mmcalib.derive.encoder_curve import costlier_together
from mmcalib.result.encoder_sweep import EncoderCurve, EncoderPoint, EncoderSweep, ModalitySweep
from mmcalib.sizes import GIB, KIB, MIB

HEAD = (
    *("stand-ins", "tokens", "to the cache", "inputs", "peak", "above the curve", "rehearsed"),
    "seconds",
)


def line(sweep: EncoderSweep) -> str:
    """All of it on one line."""
    each = [f"{modality} {_highest(one)}" for modality, one in sweep.modalities.items()]
    full = f"encoder cache when full {mib(sweep.cache_bytes)} [{sweep.cache_label}]"
    return f"encoder peak on {sweep.device}: {', '.join(each)} [{sweep.label}]; {full}"


def curve(found: EncoderCurve) -> str:
    """The formula with its numbers."""
    square = found.bytes_per_token_squared
    more = f" + {wording.number(square)} B per token²" if square else ""
    constant = mib(found.constant_bytes)
    return f"{constant} + {found.bytes_per_token / KIB:,.1f} KiB per token{more}"


def modality_line(one: ModalitySweep) -> str:
    """What the curve of one modality says, and what the rehearsal said."""
    if one.curve is None:
        said = "Fewer than three sizes were encoded: no curve is fitted"
    else:
        worst = wording.share(one.curve.worst_residual)
        said = f"Peak ≈ {curve(one.curve)}; off by {worst} of the highest peak at most"
    if more := costlier_together(_points(one, several=False), _points(one, several=True)):
        said += f". Several items take up to {more[1]:.1f} times what one of their tokens does"
    single = [point for point in one.points if point.rehearsed_bytes is not None]
    if single:
        largest = single[-1]
        said += (
            f". Rehearsed, inputs included: {_rehearsed(largest)} for "
            f"{wording.number(largest.tokens)} tokens"
        )
    return said


def depth(sweep: EncoderSweep) -> str:
    """Where it was measured, and what of it depends on that."""
    rehearsed = f"; rehearsed on {sweep.gpu}" if sweep.gpu else ""
    if sweep.gpu and sweep.device == "cpu":
        rehearsed += ", whose kernels are others"
    return (
        f"{sweep.device}, {sweep.depth} of {sweep.true_depth} encoder layers: bytes do not depend "
        "on the depth, seconds do" + rehearsed
    )


def cache(sweep: EncoderSweep) -> str:
    """What a full encoder cache holds."""
    per_token = sweep.cache_bytes / sweep.cache_tokens if sweep.cache_tokens else 0
    return (
        f"The encoder cache, {wording.number(sweep.cache_tokens)} tokens of "
        f"{wording.number(per_token)} bytes, holds {mib(sweep.cache_bytes)} when it is full"
    )


def rows(one: ModalitySweep) -> Iterator[tuple[str, ...]]:
    """One per point, under `HEAD`; then one per batch that was not encoded."""
    for point in one.points:
        yield (
            items(point.shape, point.items),
            wording.number(point.tokens),
            mib(point.output_bytes),
            mib(point.input_bytes),
            mib(point.peak_bytes),
            _above(point),
            _rehearsed(point),
            wording.seconds(point.seconds),
        )
    for missing in one.not_encoded:
        named = items(missing.shape, missing.items)
        yield (named, wording.number(missing.tokens), *(["—"] * 5), missing.reason)


def items(shape: str, count: int) -> str:
    return f"{count} × {shape}" if count > 1 else shape


def mib(value: float) -> str:
    """Below a GiB, in MiB: most of these are far smaller."""
    return wording.gib(round(value)) if abs(value) >= GIB else f"{value / MIB:z,.2f} MiB"


def _above(point: EncoderPoint) -> str:
    if point.residual_bytes is None:
        return "—"
    share = f" ({point.residual_bytes / point.peak_bytes:+z.1%})" if point.peak_bytes else ""
    return f"{mib(point.residual_bytes)}{share}"


def _rehearsed(point: EncoderPoint) -> str:
    """Against what was measured, inputs and all."""
    if point.rehearsed_bytes is None:
        return "—"
    off = point.rehearsed_bytes / (point.peak_bytes + point.input_bytes) - 1
    return f"{mib(point.rehearsed_bytes)} ({off:+z.1%})"


def _points(one: ModalitySweep, *, several: bool) -> list[tuple[int, int]]:
    return [(p.tokens, p.peak_bytes) for p in one.points if (p.items > 1) == several]


def _highest(one: ModalitySweep) -> str:
    if not one.points:
        return "not measured"
    most = max(one.points, key=lambda point: point.peak_bytes)
    return f"{mib(most.peak_bytes)} for {wording.number(most.tokens)} tokens"
