"""CUDA graphs: how many vLLM would capture, and what it would set aside for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

MIB: Final = 1 << 20
# Startup logs since 0.21 name the estimate and imply the graphs (see reports/memory-accuracy.md):
# driver memory and pool growth together come to about this much for each graph, and a first one
# that brings the pool and its workspaces.
PER_GRAPH_BYTES: Final = 5 * MIB
FIRST_GRAPH_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class Graphs:
    """`count` graphs would be captured; `nbytes` is what startup subtracts for them."""

    count: int
    nbytes: int


def estimate(config: Any, max_num_reqs: int, subtracted: bool) -> Graphs:
    """By the configuration's capture sizes and modes; zero where graphs are off.

    `config` is the engine config as the user has it, not the eager one that is rehearsed. Where
    startup does not subtract them they are counted, and cost nothing.
    """
    compilation = config.compilation_config
    mode = compilation.cudagraph_mode
    if mode is None or mode.name == "NONE":
        return Graphs(0, 0)
    sizes = compilation.cudagraph_capture_sizes or []
    count = 0
    if "PIECEWISE" in mode.name:
        count += len(sizes)
    if "FULL" in mode.name:
        count += sum(size <= max_num_reqs for size in sizes)
    if not count or not subtracted:
        return Graphs(count, 0)
    return Graphs(count, FIRST_GRAPH_BYTES + count * PER_GRAPH_BYTES)
