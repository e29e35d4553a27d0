"""Weights in host memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed
from mmcalib.sizes import GIB

_OFFLOADED = (4, 2)


def _offload(unfixed: Unfixed) -> Iterator[Fix]:
    before = float(unfixed.engine_args.get("cpu_offload_gb") or 0)
    weights = unfixed.facts.weights_bytes
    sizes = sorted({math.ceil(weights / share / GIB) for share in _OFFLOADED})
    for level, gib in enumerate(size for size in sizes if size > before):
        yield Fix(
            name=f"cpu_offload_gb={gib}",
            knob="cpu_offload_gb",
            changes={"cpu_offload_gb": gib},
            cost="most of the speed",
            price=f"every step reads {gib} GiB of weights from host memory",
            level=level,
            severity=level,
            alone=level == 0,
        )


RULES = (FixRule(110, _offload),)
