"""More of the GPU for vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed
from mmcalib.sizes import GIB

# Of a GPU that serves nothing else; driver and display want some hundred MiB.
_UTILIZATION = 0.95


def _utilization(unfixed: Unfixed) -> Iterator[Fix]:
    rest = (1 - _UTILIZATION) * unfixed.facts.total_bytes / GIB
    yield Fix(
        name="gpu_memory_utilization",
        knob="gpu_memory_utilization",
        changes={"gpu_memory_utilization": _UTILIZATION},
        cost="nothing",
        price=f"if nothing else runs on the GPU: {rest:.2f} GiB stay free",
    )


def _is_lower(unfixed: Unfixed) -> bool:
    return bool(unfixed.engine_args.get("gpu_memory_utilization", 0) < _UTILIZATION)


RULES = (FixRule(10, _utilization, _is_lower),)
