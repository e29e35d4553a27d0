"""What a calibration knows of the traffic that it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmcalib.derive.percentiles import Spread
from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class CalibratedTraffic:
    """`spreads` are tokens per item, of modalities that the corpus has; `counts` the items that a
    prompt may have. `prompts` is 0 where the corpus says nothing of requests. `media_tokens` are
    those of a request's items in the mean, at least and at most, None where not kept, and
    `preemptions` those per request that a rehearsal of the traffic had.
    """

    spreads: Mapping[Modality, Spread]
    counts: Mapping[Modality, int]
    prompts: int
    text_reserve_tokens: int
    max_model_len: int
    media_tokens: tuple[float, float] | None
    hit_rate: float | None
    preemptions: float | None

    def items_per_request(self, modality: Modality) -> float | None:
        """In the mean; None where nobody said."""
        if not self.prompts:
            return None
        spread = self.spreads.get(modality)
        return spread.items / self.prompts if spread else 0.0

    @property
    def all_items_per_request(self) -> float | None:
        """Of all modalities."""
        if not self.prompts:
            return None
        return sum(spread.items for spread in self.spreads.values()) / self.prompts

    @property
    def largest_prompt_tokens(self) -> int:
        """As many of its costliest items as the limits admit, and the reserve for text and answer;
        no more than the context.
        """
        media = sum(
            self.counts.get(modality, 0) * spread.max for modality, spread in self.spreads.items()
        )
        return min(self.max_model_len, media + self.text_reserve_tokens)
