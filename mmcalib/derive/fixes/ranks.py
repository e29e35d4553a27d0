"""More GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed

_RANKS = (2, 4, 8)


def _ranks(unfixed: Unfixed) -> Iterator[Fix]:
    # vLLM refuses ranks that cannot share the heads.
    heads = unfixed.facts.attention_heads or max(_RANKS)
    more = [n for n in _RANKS if n > unfixed.facts.tensor_parallel_size and heads % n == 0]
    for level, ranks in enumerate(more):
        yield Fix(
            name=f"tensor_parallel_size={ranks}",
            knob="tensor_parallel_size",
            changes={"tensor_parallel_size": ranks},
            cost="hardware",
            price=f"{ranks} such GPUs",
            level=level,
            severity=level,
            alone=level == 0,
        )


RULES = (FixRule(120, _ranks),)
