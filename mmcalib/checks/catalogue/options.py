"""All traps of options beside limits, caps and hints, in the order in which they would hurt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.checks.catalogue.encoder_graphs import encoder_graphs
from mmcalib.checks.catalogue.frontend import frontend
from mmcalib.checks.catalogue.logprobs import prompt_logprobs
from mmcalib.checks.catalogue.pruning import pruning
from mmcalib.checks.catalogue.tower_parallel import tower_parallel
from mmcalib.checks.catalogue.trust import embeddings, trusted_kwargs
from mmcalib.checks.trap import Figures, Trap


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
