"""vLLM's encoder budget."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class Dummy:
    """The item that vLLM profiles with: its embeds, and its size as the dummy builder made it."""

    embeds: int
    tensor_bytes: int
    size: dict[str, int]


@dataclass(frozen=True, slots=True)
class Clip:
    """A video as the loader hands it over, and the encoder-cache entries that it takes."""

    embeds: int
    num_frames: int
    width_px: int
    height_px: int

    def __str__(self) -> str:
        return f"{self.num_frames} frames of {self.width_px}×{self.height_px}"


@dataclass(frozen=True, slots=True)
class Budget:
    """Encoder budget in tokens, as vLLM computes it, and what its profile would run.

    Per modality: `max_tokens_per_item`, `max_items_per_prompt`, `max_items_per_batch`. The profile
    runs `profiled_items` of `profiled_modality`; `dummies` holds what each such item costs.
    `largest_clip` is the largest that loader and processor make of any video, None where nothing
    bounds it.
    """

    encoder_compute_budget: int
    encoder_cache_size: int
    max_tokens_per_item: dict[Modality, int]
    max_items_per_prompt: dict[Modality, int]
    max_items_per_batch: dict[Modality, int]
    profiled_modality: Modality | None
    profiled_items: int
    dummies: dict[Modality, Dummy]
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    largest_clip: Clip | None = None

    @property
    def encoder_budget_tokens(self) -> int:
        """What one step may encode: the scheduler heeds both limits."""
        return min(self.encoder_compute_budget, self.encoder_cache_size)

    def largest_item(self, modality: Modality) -> int:
        """The most tokens that an admissible item of the modality takes; 0 where none is budgeted.

        An image or sound is at most what vLLM says is the largest. Its largest video is the one of
        its dummies: a real one may be larger, up to what a step may encode.
        """
        most = self.max_tokens_per_item.get(modality, 0)
        if modality != "video" or not most:
            return most
        if self.largest_clip is None:
            return self.encoder_budget_tokens
        return min(self.encoder_budget_tokens, max(most, self.largest_clip.embeds))
