"""Fewer CUDA graphs, or none."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed

_GRAPH_SIZE = 16


def _graphs(unfixed: Unfixed) -> Iterator[Fix]:
    if not unfixed.engine_args.keys() & {"cudagraph_capture_sizes", "compilation_config"}:
        yield Fix(
            name="max_cudagraph_capture_size",
            knob="cuda graphs",
            changes={"max_cudagraph_capture_size": _GRAPH_SIZE},
            cost="speed",
            price=f"steps of more than {_GRAPH_SIZE} tokens run without CUDA graphs",
        )
    yield Fix(
        name="enforce_eager",
        knob="cuda graphs",
        changes={"enforce_eager": True},
        cost="speed",
        price="no CUDA graphs and no compiled code: slower answers, quicker start",
        level=1,
        severity=1,
    )


def _are_captured(unfixed: Unfixed) -> bool:
    return not unfixed.engine_args.get("enforce_eager")


RULES = (FixRule(60, _graphs, _are_captured),)
