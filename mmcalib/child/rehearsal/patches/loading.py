"""Loading a model without weights: nothing is read, and nothing is drawn at random."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import models, targets


def install() -> None:
    """Dummy weights stay as they were allocated; model classes are inspected in this process."""
    # It makes a small table when it is imported: on the GPU, if a layer asks for it first.
    if importlib.util.find_spec("compressed_tensors"):
        importlib.import_module("compressed_tensors")
    for target in targets.DUMMY_WEIGHTS:
        replace(target, _nothing)
    # A subprocess would not know of the stand-ins.
    replace(targets.INSPECTION, _run_here)
    record = replace(targets.RELOADING, None)

    def record_metadata_for_reloading(model: Any) -> None:
        """Costs a copy of every parameter's description; only online quantization needs it."""
        if models.quantizes():
            record(model)

    replace(targets.RELOADING, record_metadata_for_reloading)
    _quantize_without_weights()


def _quantize_without_weights() -> None:
    is_quantized = replace(targets.GPTQ_LAYER, None)
    if is_quantized is None:
        return

    def is_layer_gptq_quantized(
        prefix: str, quantized_layers: list[str], *args: Any, **kwargs: Any
    ) -> Any:
        """No list is that of a folder without weights, and not of a model without such layers."""
        return not quantized_layers or is_quantized(prefix, quantized_layers, *args, **kwargs)

    replace(targets.GPTQ_LAYER, is_layer_gptq_quantized)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _run_here(function: Callable[[], Any]) -> Any:
    return function()
