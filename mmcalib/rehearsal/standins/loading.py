"""Loading a model without weights: nothing is read, and nothing is drawn at random."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from mmcalib.rehearsal.release import VLLM_0_23
from mmcalib.rehearsal.standins.seam import replace

_LOADER = "vllm.model_executor.model_loader"
_INITIALIZE = "initialize_single_dummy_weight" if VLLM_0_23.reached else "initialize_dummy_weights"


def install() -> None:
    """Dummy weights stay as they were allocated; model classes are inspected in this process."""
    # Imported when a layer first asks for it, it makes a small table: on the GPU, if it is the first
    # to be rehearsed.
    if importlib.util.find_spec("compressed_tensors"):
        importlib.import_module("compressed_tensors")
    replace(f"{_LOADER}.dummy_loader.{_INITIALIZE}", _nothing)
    # A subprocess would not know of the stand-ins.
    replace("vllm.model_executor.models.registry._run_in_subprocess", _run_here)
    record = replace(f"{_LOADER}.utils.record_metadata_for_reloading", None)

    def record_metadata_for_reloading(model: Any) -> None:
        """Costs a copy of every parameter's description; only online quantization needs it."""
        from vllm.config import get_current_vllm_config

        if get_current_vllm_config().quant_config is not None:
            record(model)

    replace(f"{_LOADER}.utils.record_metadata_for_reloading", record_metadata_for_reloading)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _run_here(function: Callable[[], Any]) -> Any:
    return function()
