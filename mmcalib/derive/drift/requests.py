"""Today's requests, each held against the calibration's gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from mmcalib.derive.admission import Admission, admit_beside
from mmcalib.derive.drift.calibrated import CalibratedTraffic
from mmcalib.derive.drift.figure import DriftFigure, alike, items_per_request, no_more, shown
from mmcalib.derive.gate import Gate
from mmcalib.derive.percentiles import quantile
from mmcalib.domain.shapes import MODALITIES, Modality, Shape

QUANTILES: Final = {"p50": 0.50, "p90": 0.90, "p99": 0.99}

_REFUSED: Final = (
    "requests that the calibrated configuration rejects; by headers, so a file that is damaged "
    "behind its header is not among them"
)
_UNKNOWN: Final = (
    "requests of which the calibration cannot tell; none of them is counted as refused"
)
_TOKENS: Final = (
    "tokens that one item takes under the calibrated configuration; where only a bound is known, "
    "the bound"
)
_ITEMS: Final = (
    "items in a request, in the mean: how they spread over requests is not in a calibration"
)


@dataclass(slots=True)
class TrafficSeen:
    """What was counted so far; grows with the distinct costs, not with the requests."""

    requests: int = 0
    refused: int = 0
    unknown: int = 0
    read: int = 0
    tokens: dict[Modality, Counter[int]] = field(
        default_factory=lambda: {modality: Counter() for modality in MODALITIES}
    )
    items: Counter[Modality] = field(default_factory=Counter)

    def add(self, gate: Gate, shapes: Sequence[Shape], admission: Admission, *, read: bool) -> None:
        """One request; `read`: its items could be."""
        self.requests += 1
        self.refused += admission.answer == "no"
        self.unknown += admission.answer == "unknown"
        self.read += read
        for shape in shapes:
            self.items[shape.modality] += 1
            tokens = admit_beside(gate, shape, 0).tokens
            if tokens is not None:
                self.tokens[shape.modality][tokens] += 1


def requests_drift(
    seen: TrafficSeen, known: CalibratedTraffic, tolerated: float
) -> Iterator[DriftFigure]:
    """Figures of at least one request; `tolerated` is the share that may be refused."""
    yield no_more("refused", "share", seen.refused / seen.requests, tolerated, _REFUSED, 0.0)
    yield shown("undecided", "share", seen.unknown / seen.requests, None, _UNKNOWN)
    for modality in MODALITIES:
        spread, counted = known.spreads.get(modality), seen.tokens[modality]
        if spread is None and not counted:
            continue
        for name, share in QUANTILES.items():
            today = quantile(list(counted), list(counted.values()), share) if counted else None
            was = getattr(spread, name) if spread else None
            yield alike(f"{modality} tokens {name}", "tokens", today, was, counted.total(), _TOKENS)
        most = max(counted, default=None)
        yield shown(
            f"{modality} tokens max", "tokens", most, spread.max if spread else None, _TOKENS
        )
        mean = known.items_per_request(modality)
        yield items_per_request(
            f"{modality} items per request", seen.items[modality], seen.read, mean, _ITEMS
        )
