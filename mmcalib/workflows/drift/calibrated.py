"""What a calibration says of its traffic, as the figures need it."""

from __future__ import annotations

from mmcalib.derive.drift.calibrated import CalibratedTraffic
from mmcalib.derive.percentiles import Spread
from mmcalib.domain.shapes import MODALITIES
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.costs import ModalityCosts


def calibrated_traffic(calibration: CalibrationDocument) -> CalibratedTraffic:
    """Raises UsageError where the calibration has no costs."""
    gate, corpus = calibration.gate, calibration.corpus
    spreads = {
        modality: Spread(
            items=found.items,
            unique_shapes=found.unique_shapes,
            **found.tokens.model_dump(exclude={"label"}),
        )
        for modality in MODALITIES
        if (found := corpus.modalities.get(modality))
    }
    served = calibration.traffic.calibrated if calibration.traffic else None
    return CalibratedTraffic(
        spreads=spreads,
        counts=gate.counts,
        prompts=corpus.prompts,
        text_reserve_tokens=gate.text_reserve_tokens,
        max_model_len=gate.max_model_len,
        media_tokens=_media_tokens(calibration),
        hit_rate=calibration.cache.hit_rate if calibration.cache else None,
        preemptions=served.preemptions / served.requests if served and served.requests else None,
    )


def _media_tokens(calibration: CalibrationDocument) -> tuple[float, float] | None:
    """Of a request in the mean, at least and at most; what is not listed shape by shape lies in
    bins.
    """
    prompts, costs = calibration.corpus.prompts, calibration.costs
    if not prompts or costs is None:
        return None
    parts = [_sums(part) for part in costs.modalities.values()]
    if any(part is None for part in parts):
        return None
    least, most = (sum(part[end] for part in parts if part) for end in (0, 1))
    return least / prompts, most / prompts


def _sums(part: ModalityCosts) -> tuple[int, int] | None:
    if any(known.items is None for known in part.known):
        return None
    listed = sum(known.tokens * (known.items or 0) for known in part.known)
    bins = part.unlisted.tokens if part.unlisted else []
    return (
        listed + sum(one.least_tokens * one.items for one in bins),
        listed + sum(one.most_tokens * one.items for one in bins),
    )
