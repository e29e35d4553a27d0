"""Items per prompt (R1), size hints (R3) and max_num_batched_tokens (R5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mmcalib.derive.item_cost import ItemCost
from mmcalib.domain.budget import Budget
from mmcalib.domain.label import Label
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, VideoShape

Hint = Mapping[str, int]
# How many tokens a step has beside whole largest items: vLLM's profile rounds down to whole ones.
Rounding = Literal["up", "down", "none"]


@dataclass(frozen=True, slots=True)
class Count:
    """How many items of a modality one prompt may carry, and where the number comes from."""

    value: int
    reason: str
    label: Label
    exemplar: str = ""


def limit_mm_per_prompt(
    counts: Mapping[Modality, Count], hints: Mapping[Modality, Hint]
) -> dict[str, Any]:
    """Every modality is written; 0 and plain counts as numbers, hinted ones as mappings."""
    return {
        modality: {"count": count.value, **hints[modality]} if hints.get(modality) else count.value
        for modality, count in counts.items()
    }


def hint_candidates(heaviest: ItemCost, audio_rate_hz: int | None) -> list[Hint]:
    """Size hints that name the costliest shape, best first: as it is, then turned, since the
    model's own maximum may lie the other way and hints can only shrink each axis.

    A video has the frames that the server's loader keeps of it; a clip the samples that it has at
    `audio_rate_hz`, to which the server resamples.
    """
    match heaviest.shape:
        case ImageShape(width_px=width, height_px=height):
            return [{"width": w, "height": h} for w, h in ((width, height), (height, width))]
        case VideoShape(width_px=width, height_px=height):
            frames = heaviest.sampled[0]
            return [
                {"num_frames": frames, "width": w, "height": h}
                for w, h in ((width, height), (height, width))
            ]
        case AudioShape(num_samples=samples, sample_rate_hz=rate):
            # In whole numbers: seconds as a float are off by a sample for one clip in twenty.
            return [{"length": -(-samples * audio_rate_hz // rate)}] if audio_rate_hz else []


def hint_is_honest(modality: Modality, budget: Budget, heaviest: ItemCost) -> bool:
    """Whether the dummy that vLLM builds from the hint costs what may come: at least the largest
    item that vLLM budgets for, which in turn is at least the corpus' largest.
    """
    dummy = budget.dummies.get(modality)
    if dummy is None or modality not in budget.max_tokens_per_item:
        return False
    most = budget.max_tokens_per_item[modality]
    return dummy.embeds >= most and most >= heaviest.embeds


def max_num_batched_tokens(
    wanted: int,
    largest_item: int,
    largest_real: int,
    *,
    chunks_mm_input: bool,
    rounding: Rounding = "up",
) -> int:
    """Tokens per step: `wanted`, or what the corpus' largest item needs, rounded to whole largest
    items. Rounded down it still holds the corpus' largest item.

    `largest_item` is the largest that vLLM budgets for, `largest_real` the corpus' largest; both
    in encoder-cache entries. Models that cannot chunk multimodal input need a whole item per step.
    """
    if largest_item <= 0:
        return wanted
    needed = max(wanted, largest_real if largest_real > largest_item else 0)
    if needed < largest_item:
        return needed if chunks_mm_input else largest_item
    if rounding == "none":
        return needed
    whole = needed // largest_item * largest_item
    if whole == needed or (rounding == "down" and whole >= largest_real):
        return whole
    return whole + largest_item
