"""All traps of options beside limits, caps and hints, in the order in which they would hurt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.derive.traps.encoder_graphs import encoder_graphs
from mmcalib.derive.traps.frontend import frontend
from mmcalib.derive.traps.logprobs import prompt_logprobs
from mmcalib.derive.traps.pruning import pruning
from mmcalib.derive.traps.tower_parallel import tower_parallel
from mmcalib.derive.traps.trap import Figures, Trap
from mmcalib.derive.traps.trust import embeddings, trusted_kwargs


def option_traps(
    engine_args: Mapping[str, Any], served: Mapping[str, Any], known: Figures
) -> Iterator[Trap]:
    """`served` are all arguments of `vllm serve`, those of its front end among them."""
    found = (
        trusted_kwargs(served, known),
        pruning(engine_args, known),
        tower_parallel(engine_args, known),
        prompt_logprobs(engine_args, known),
        encoder_graphs(engine_args, known),
        embeddings(engine_args, known),
        frontend(engine_args, known),
    )
    yield from (trap for trap in found if trap is not None)
