"""The model that a worker builds and loads, and what vLLM keeps for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from mmcalib.releases.captures import forget_workspaces
from mmcalib.releases.release import VLLM_0_13


def embeds_width(config: Any) -> int:
    """Entries of one encoder output as the decoder takes it."""
    if VLLM_0_13.reached:
        return int(config.model_config.get_inputs_embeds_size())
    return int(config.model_config.get_hidden_size())


def forget_models() -> None:
    """vLLM keeps tables for the next model of the process: they are of this GPU's era."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    _ROPE_DICT.clear()
    forget_workspaces()
    if VLLM_0_13.reached:
        from vllm.v1.worker.workspace import reset_workspace_manager

        reset_workspace_manager()


@contextmanager
def weights_as_loaded(on_built: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    """While open, a model that is built leaves its parameters' sizes in the yielded mapping, and
    `on_built` hears their sum.

    Read when the model is built: CPU kernels later repack weights into tensors of their own, and no
    page of a parameter is taken before it is filled.
    """
    from vllm.model_executor.model_loader import base_loader

    sizes: dict[str, Any] = {}
    original = base_loader.initialize_model

    def initialize(*args: Any, **kwargs: Any) -> Any:
        model = original(*args, **kwargs)
        seen = set()
        for name, parameter in model.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                sizes[name] = parameter.numel() * parameter.element_size()
        on_built(sum(sizes.values()))
        return model

    base_loader.initialize_model = initialize
    try:
        yield sizes
    finally:
        base_loader.initialize_model = original


def built_under(config: Any) -> AbstractContextManager[Any]:
    """While open, vLLM's layers are built under this engine config."""
    from vllm.config import set_current_vllm_config

    opened: AbstractContextManager[Any] = set_current_vllm_config(config)
    return opened


def quantizes() -> bool:
    """Whether the model that is being built is quantized."""
    from vllm.config import get_current_vllm_config

    return get_current_vllm_config().quant_config is not None
