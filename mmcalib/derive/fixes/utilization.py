"""More of the GPU for vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed
from mmcalib.sizes import GIB

UTILIZATION: Final = "gpu_memory_utilization"
# Of a GPU that serves nothing else; driver and display want some hundred MiB.
_MOST: Final = 0.95


def _utilization(unfixed: Unfixed) -> Iterator[Fix]:
    rest = (1 - _MOST) * unfixed.facts.total_bytes / GIB
    yield Fix(
        name=UTILIZATION,
        knob=UTILIZATION,
        changes={UTILIZATION: _MOST},
        cost="nothing",
        price=f"if nothing else runs on the GPU: {rest:.2f} GiB stay free",
    )


def _is_lower(unfixed: Unfixed) -> bool:
    return bool(unfixed.engine_args.get(UTILIZATION, 0) < _MOST)


RULES = (FixRule(10, _utilization, _is_lower),)
