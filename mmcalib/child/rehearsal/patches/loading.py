"""Loading a model without weights: nothing is read, and nothing is drawn at random."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.child.rehearsal.release import VLLM_0_23, VLLM_0_32

_LOADER = "vllm.model_executor.model_loader"
_INITIALIZE = "initialize_single_dummy_weight" if VLLM_0_23.reached else "initialize_dummy_weights"


def install() -> None:
    """Dummy weights stay as they were allocated; model classes are inspected in this process."""
    # It makes a small table when it is imported: on the GPU, if a layer asks for it first.
    if importlib.util.find_spec("compressed_tensors"):
        importlib.import_module("compressed_tensors")
    replace(f"{_LOADER}.dummy_loader.{_INITIALIZE}", _nothing)
    # A subprocess would not know of the stand-ins.
    replace("vllm.model_executor.models.registry._run_in_subprocess", _run_here)
    target = f"{_LOADER}.utils.record_metadata_for_reloading"
    record = replace(target, None, since=VLLM_0_32)

    def record_metadata_for_reloading(model: Any) -> None:
        """Costs a copy of every parameter's description; only online quantization needs it."""
        from vllm.config import get_current_vllm_config

        if get_current_vllm_config().quant_config is not None:
            record(model)

    replace(target, record_metadata_for_reloading, since=VLLM_0_32)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _run_here(function: Callable[[], Any]) -> Any:
    return function()
