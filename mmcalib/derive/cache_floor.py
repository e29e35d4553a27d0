"""What one admissible request may put into vLLM's processor cache: the least size that is safe.

vLLM looks all items of a request up, then stores the new ones. Where those push out an item that
the same request found cached, it fails with HTTP 500, "Expected a cached item for mm_hash=..."
(`_merge_mm_kwargs` in vllm/multimodal/processing/processor.py and `get_and_update_item` in
vllm/multimodal/cache/lru.py of 0.32; vLLM PR 28525 assumes that a request fits).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mmcalib.derive.costs import CostTable
from mmcalib.domain.budget import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import QWEN_MOST_ASPECT


@dataclass(frozen=True, slots=True)
class CacheFloor:
    """Per modality: how many items one request may carry, and the bytes of the largest of them."""

    items: Mapping[Modality, tuple[int, int]]

    @property
    def nbytes(self) -> int:
        """A cache of so many bytes never pushes out what the request at hand has found in it."""
        return sum(count * nbytes for count, nbytes in self.items.values())


def cache_floor(
    counts: Mapping[Modality, int], table: CostTable, plain: Budget, limit_tokens: int
) -> CacheFloor:
    """The floor under these counts, *computed* from vLLM's dummies: `plain` is the budget of the
    configuration without size hints, with its dummies; `limit_tokens` what the encoder cache
    admits.
    """
    served = {modality: count for modality, count in counts.items() if count}
    return CacheFloor(
        {m: (count, largest_item_bytes(m, table, plain, limit_tokens))
         for m, count in served.items()}
    )  # fmt: skip


def within_context(
    counts: Mapping[Modality, int], table: CostTable, plain: Budget, limit_tokens: int
) -> dict[Modality, int]:
    """The counts, but no more of the largest items than begin within `max_model_len`, all of them
    together, those of most bytes a token first: no prompt brings more.
    """
    found, left = dict(counts), plain.max_model_len
    sizes = {modality: _most_embeds(modality, plain, limit_tokens) for modality in counts}

    def rate(modality: Modality) -> float:
        return largest_item_bytes(modality, table, plain, limit_tokens) / sizes[modality]

    for modality in sorted(filter(sizes.__getitem__, counts), key=rate, reverse=True):
        found[modality] = min(counts[modality], math.ceil(left / sizes[modality]))
        left = max(0, left - found[modality] * sizes[modality])
    return found


def largest_item_bytes(
    modality: Modality, table: CostTable, plain: Budget, limit_tokens: int
) -> int:
    """Processed bytes of the largest item that is admitted, whether the corpus has it or not.

    vLLM's dummy of the most tokens, and never less than the largest of the corpus. A dummy clip may
    have fewer frames than a loader keeps (Qwen2-VL's has 14): of videos it is the most bytes for
    each token, times what the encoder cache admits.
    """
    costs = table.of(modality)
    dummy, most = plain.dummies.get(modality), _most_embeds(modality, plain, limit_tokens)
    found = [max(1, int(costs.tensor_bytes.max()))] if costs else []
    rates = [] if dummy is None or not dummy.embeds else [dummy.tensor_bytes / dummy.embeds]
    if dummy is not None:
        found.append(dummy.tensor_bytes)
    if modality == "video":
        some = costs.take(costs.embeds > 0)
        rates += [float((some.tensor_bytes / some.embeds).max(initial=0))]
    return max([*found, math.ceil(most * max(rates, default=0))], default=0)


def _most_embeds(modality: Modality, plain: Budget, limit_tokens: int) -> int:
    """vLLM's largest item, or a picture so slim that it exceeds the cap; of videos any that the
    encoder cache admits. `Budget.largest_item` leaves out clips that no camera makes: they may be
    several times as large, and one that is too large for the cache is an error of the server.
    """
    most = plain.max_tokens_per_item.get(modality, 0)
    if modality == "video" and most:
        return limit_tokens
    if modality == "image":
        # The slimmest keeps a token's height, and the length that its area leaves it, whatever the
        # cap: √(200 × cap) tokens, more than a cap below 200.
        return max(most, min(math.ceil(math.sqrt(QWEN_MOST_ASPECT * most)), limit_tokens))
    return most


def parts(floor: CacheFloor) -> Iterator[str]:
    """Such as `3 × image of 77.1 MB`."""
    for modality, (count, nbytes) in floor.items.items():
        yield f"{count} × {modality} of {nbytes / 1e6:,.1f} MB"
