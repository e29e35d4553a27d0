"""Items per prompt, batch limits, size hints, the reserve, and resident items."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, VideoShape
from mmcalib.limits.costs import CostTable, ItemCost
from mmcalib.releases.constants import DEFAULT_ITEM_LIMIT

LIMIT = "limit_mm_per_prompt"
KWARGS = "mm_processor_kwargs"
CACHE = "mm_processor_cache_gb"
Hint = Mapping[str, int]
SIZES: Final = {
    "image": ("width", "height"),
    "video": ("num_frames", "width", "height"),
    "audio": ("length",),
}
# How to round a step to whole largest items: vLLM's profile rounds down.
Rounding = Literal["up", "down", "none"]


@dataclass(frozen=True, slots=True)
class Count:
    """Items of a modality that one prompt may contain, and the source of the number."""

    value: int
    reason: str
    label: Label
    exemplar: str = ""


def limit_mm_per_prompt(
    counts: Mapping[Modality, Count], hints: Mapping[Modality, Hint]
) -> dict[str, Any]:
    """Write every modality: 0 and plain counts as numbers, hinted ones as mappings."""
    return {
        modality: {"count": count.value, **hints[modality]} if hints.get(modality) else count.value
        for modality, count in counts.items()
    }


def limit_options(limits: Mapping[str, Any], modality: str) -> dict[str, Any]:
    """The count and size hint of one modality, as vLLM reads them."""
    value = limits.get(modality)
    if isinstance(value, Mapping):
        return {name: inner for name, inner in value.items() if inner is not None}
    return {} if value is None else {"count": value}


def size_hint(limits: Mapping[str, Any], modality: str) -> dict[str, int]:
    axes = SIZES.get(modality, ())
    return {name: v for name, v in limit_options(limits, modality).items() if name in axes}


def plain_counts(limits: Mapping[str, Any]) -> dict[str, int]:
    """The counts of all modalities that are listed, without size hints."""
    return {m: limit_options(limits, m).get("count", DEFAULT_ITEM_LIMIT) for m in limits}


def count_limits(engine_args: Mapping[str, Any], opened: ModelInfo) -> dict[Modality, Count]:
    """The most items of each modality in one prompt with these arguments."""
    limits = engine_args.get(LIMIT) or {}
    found: dict[Modality, Count] = {}
    for modality, most in opened.modalities.items():
        value = limit_options(limits, modality).get("count", DEFAULT_ITEM_LIMIT)
        reason = "given in the configuration" if modality in limits else "vLLM's default"
        if most is not None and value > most:
            value, reason = most, "the model's maximum"
        if engine_args.get("language_model_only"):
            value, reason = 0, "language_model_only"
        found[modality] = Count(value, reason, "given")
    return found


def normalize_limits(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with limits as vLLM reads them: '2' and 2.0 become 2."""
    args = dict(engine_args)
    if args.get(LIMIT):
        args[LIMIT] = {name: _whole(value) for name, value in args[LIMIT].items()}
    return args


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _whole(inner) for name, inner in value.items()}
    return None if value is None else int(value)


def hint_candidates(heaviest: ItemCost, audio_rate_hz: int | None) -> list[Hint]:
    """Size hints of the costliest shape, best first: as it is, then rotated, since the model's own
    maximum may have the other orientation and hints can only shrink each axis.

    A video has the frames that the server's loader returns; a clip has its samples at
    `audio_rate_hz`, the rate to which the server resamples.
    """
    match heaviest.shape:
        case ImageShape(width_px=width, height_px=height):
            return [{"width": w, "height": h} for w, h in ((width, height), (height, width))]
        case VideoShape(width_px=width, height_px=height):
            sizes, frames = ((width, height), (height, width)), heaviest.sampled[0]
            return [{"num_frames": frames, "width": w, "height": h} for w, h in sizes]
        case AudioShape(num_samples=samples, sample_rate_hz=rate):
            # Integers: as a float, seconds are off by a sample for one clip in twenty.
            return [{"length": -(-samples * audio_rate_hz // rate)}] if audio_rate_hz else []


def hint_covers_largest(modality: Modality, budget: Budget, heaviest: ItemCost) -> bool:
    """Check that the hint's dummy costs at least the largest item that vLLM budgets for."""
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
    """Tokens per step: `wanted`, or the corpus' largest item, rounded to whole largest items, never
    below the corpus' largest. Items are in encoder-cache entries; a model that cannot chunk
    multimodal input needs a whole one per step.
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


# Below this share a step can exceed the profile by more than the allocator's and vLLM's own slack.
# Tokens only: with a rehearsal, bytes decide.
MIN_RESERVE_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class ProfileReserve:
    """Tokens that the profile encodes, tokens that one step may encode, and their ratio; `clip` is
    the largest video if it exceeds vLLM's own dummy and does not fill the step.
    """

    profiled_tokens: int
    worst_step_tokens: int
    clip: str = ""

    @property
    def clip_suffix(self) -> str:
        """Description of the worst step, as a suffix of its tokens."""
        return f" (videos of up to {self.clip})" if self.clip else ""

    @property
    def ratio(self) -> float:
        return self.profiled_tokens / self.worst_step_tokens if self.worst_step_tokens else 1.0

    @property
    def passes(self) -> bool:
        return self.ratio >= MIN_RESERVE_RATIO


def compute_reserve(budget: Budget, counts: Mapping[Modality, int]) -> ProfileReserve:
    """Compare the profile, dummies included, with the worst step: prompts of largest items."""
    limit = budget.encoder_budget_tokens
    per_sequence = sum(count * budget.largest_item(m) for m, count in counts.items())
    profiled = budget.profiled_items * budget.profiled_embeds
    requested, clip = budget.max_num_seqs * per_sequence, budget.largest_clip
    larger = clip is not None and clip.embeds > budget.max_tokens_per_item.get("video", 0)
    clip_text = str(clip) if larger and counts.get("video") and requested < limit else ""
    return ProfileReserve(profiled, min(limit, requested), clip_text)


def token_adequacy(
    engine_args: Mapping[str, Any], budget: Budget, served: Mapping[Modality, Count]
) -> ProfileReserve:
    """The reserve in tokens; a skipped profile encodes none."""
    found = compute_reserve(budget, {m: count.value for m, count in served.items()})
    return replace(found, profiled_tokens=0) if engine_args.get("skip_mm_profiling") else found


@dataclass(frozen=True, slots=True)
class ResidentItems:
    """The heaviest item of a modality: how many of it fit the encoder cache, and the least steps
    for its part of the prompt. `over_half` items of the corpus fill over half the cache.

    vLLM keeps an item in the encoder cache until the language model has processed its last token,
    and encodes no item without room for it (`_free_encoder_inputs` and
    `_try_schedule_encoder_inputs`, vllm/v1/core/sched/scheduler.py of 0.32).
    """

    modality: Modality
    item: ItemCost
    items: int
    steps: int
    over_half: int

    @property
    def delays_others(self) -> bool:
        """True if another such item waits longer than a step; the same item shares its entry."""
        return self.items == 1 and self.steps > 1 and self.over_half > 1


def resident_items(table: CostTable, budget: Budget) -> Iterator[ResidentItems]:
    """Yield one per modality in the corpus."""
    for modality in table.modalities():
        item = table.heaviest(modality)
        if item is not None and item.embeds:
            items = budget.encoder_cache_size // item.embeds
            steps = math.ceil(item.tokens / budget.max_num_batched_tokens)
            half = budget.encoder_cache_size // 2
            costs = table.columns_of(modality)
            alone = int(costs.counts[costs.embeds > half].sum())
            yield ResidentItems(modality, item, items, steps, alone)
