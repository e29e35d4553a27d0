"""Requests served by a rehearsal's process, on a model that is as wide and not as deep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.traffic import Arrivals, Trace, Traffic
from mmcalib.models import cut_checkpoint
from mmcalib.workflows.memory.rehearse import Rehearsals
from mmcalib.workflows.proof.startup import CUT_LAYERS


def cut_for_serving(model: Path, scratch: Path) -> Path:
    """The folder of a model of the same widths and fewer layers: what a step takes above the loaded
    model does not depend on their number.
    """
    return cut_checkpoint(
        model, scratch / "served", text_layers=CUT_LAYERS, encoder_layers=CUT_LAYERS
    ).path


def served_by(
    rehearsals: Rehearsals,
    cut: Path,
    engine_args: Mapping[str, Any],
    started: Rehearsed,
    asked: Trace,
    arrivals: Arrivals,
) -> Traffic:
    """With as many KV blocks as startup found for the whole model."""
    blocks = {"num_gpu_blocks_override": started.kv_blocks}
    args = {**engine_args, **blocks, "model": str(cut)}
    # It decides about blocks, which are decided.
    args.pop("kv_cache_memory_bytes", None)
    return rehearsals.serve(args, asked.requests, arrivals)
