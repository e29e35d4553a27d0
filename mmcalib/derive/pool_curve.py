"""The KV cache that a profile leaves, from rehearsals of others: between two, in proportion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mmcalib.domain.budget import Budget
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.shapes import Modality

# Modality that is profiled and sequences of a step: rehearsals that differ in one of these say
# nothing of each other. The tokens of a step move its buffers, which is little beside the encoder.
Kind = tuple[Modality | None, int]

# Of few rehearsals none need be as far off as the next.
_MARGIN: Final = 2


@dataclass(frozen=True, slots=True)
class KvPool:
    """Bytes for the KV cache; `off_bytes` is how far from a rehearsal they may be, 0 of one."""

    nbytes: int
    off_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Spot:
    """What one rehearsal found at so many profiled tokens. `left_bytes` are for the profile's peak
    and the KV cache, `beside_bytes` of the peak are in none of its phases.
    """

    tokens: int
    left_bytes: int
    encoder_bytes: int
    later_bytes: int
    beside_bytes: int

    @property
    def pool_bytes(self) -> int:
        return self.left_bytes - max(self.encoder_bytes, self.later_bytes) - self.beside_bytes


def kind(budget: Budget) -> Kind:
    return budget.profiled_modality, budget.max_num_seqs


def profiled_tokens(budget: Budget) -> int:
    modality = budget.profiled_modality
    each = budget.max_tokens_per_item.get(modality, 0) if modality else 0
    return budget.profiled_items * each


@dataclass(frozen=True, slots=True)
class PoolCurve:
    """Rehearsals of one kind, ascending by what they profiled.

    The peaks of a profile grow with its tokens, each by its own line, and what the allocator keeps
    beside them moves a little without one: so how far off a pool between two may be is known by
    how far each rehearsal is from what its neighbours say of it.
    """

    spots: tuple[_Spot, ...]

    @classmethod
    def of(cls, found: Iterable[tuple[int, Rehearsed]]) -> PoolCurve:
        """Each with the tokens that it profiled."""
        spots = {tokens: _spot(tokens, one) for tokens, one in found}
        return cls(tuple(spots[tokens] for tokens in sorted(spots)))

    def at(self, tokens: int) -> KvPool | None:
        """None beyond what was rehearsed, and where nothing says how far off it may be."""
        off = self.off_bytes
        found = _between(self.spots, tokens)
        return None if found is None or off is None else KvPool(found, off)

    @property
    def off_bytes(self) -> int | None:
        """Twice the most by which a rehearsal differs from what those on both sides say of it."""
        inner = [self._off(place) for place in range(1, len(self.spots) - 1)]
        return _MARGIN * max(inner) if inner else None

    def _off(self, place: int) -> int:
        spot, others = self.spots[place], [*self.spots[:place], *self.spots[place + 1 :]]
        said = _between(others, spot.tokens)
        return abs((said or 0) - spot.pool_bytes)


def _spot(tokens: int, found: Rehearsed) -> _Spot:
    peaks = {phase.name: phase.peak_bytes for phase in found.phases}
    encoder = peaks.pop("encoder", 0)
    later = max(peaks.values(), default=0)
    return _Spot(
        tokens,
        found.kv_cache_bytes + found.activation_peak_bytes,
        encoder,
        later,
        found.activation_peak_bytes - max(encoder, later),
    )


def _between(spots: Sequence[_Spot], tokens: int) -> int | None:
    below = max((s for s in spots if s.tokens <= tokens), key=lambda s: s.tokens, default=None)
    above = min((s for s in spots if s.tokens >= tokens), key=lambda s: s.tokens, default=None)
    if below is None or above is None:
        return None
    if below.tokens == above.tokens:
        return below.pool_bytes
    share = (tokens - below.tokens) / (above.tokens - below.tokens)

    def mixed(low: int, high: int) -> int:
        return round(low + share * (high - low))

    return _Spot(
        tokens,
        mixed(below.left_bytes, above.left_bytes),
        mixed(below.encoder_bytes, above.encoder_bytes),
        mixed(below.later_bytes, above.later_bytes),
        mixed(below.beside_bytes, above.beside_bytes),
    ).pool_bytes
