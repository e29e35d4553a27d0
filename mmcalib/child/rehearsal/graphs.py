"""CUDA graphs: how many vLLM would capture, and what it would set aside for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mmcalib.releases.compilation import graph_mode

MIB: Final = 1 << 20
# A least-squares line through six public estimates for dense decoders since 0.19, 13 to 86 graphs
# (benchmarks/memory_allowances.toml has them): the pool with a first graph, and each graph.
PER_GRAPH_BYTES: Final = 6.2 * MIB
FIRST_GRAPH_BYTES: Final = 52 * MIB


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
    mode = graph_mode(config)
    if mode == "NONE":
        return Graphs(0, 0)
    sizes = config.compilation_config.cudagraph_capture_sizes or []
    count = 0
    if "PIECEWISE" in mode:
        count += len(sizes)
    if "FULL" in mode:
        count += sum(size <= max_num_reqs for size in sizes)
    if not count or not subtracted:
        return Graphs(count, 0)
    return Graphs(count, round(FIRST_GRAPH_BYTES + count * PER_GRAPH_BYTES))
