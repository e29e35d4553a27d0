"""vLLM's models: how they are built, their attention backends, their CUDA graphs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from mmcalib.releases.release import VLLM_0_13, VLLM_0_15, VLLM_0_20, VLLM_0_23, VLLM_0_32
from mmcalib.releases.runner import uses_v2_runner


def sampler_name() -> str:
    if not VLLM_0_23.is_reached:
        # FlashInfer's sampler is off unless VLLM_USE_FLASHINFER_SAMPLER is set.
        return "torch"
    from vllm.v1.sample.ops.topk_topp_sampler import flashinfer_sampler_supported

    return "FlashInfer" if flashinfer_sampler_supported() else "torch"


def encoder_attention_backends(config: Any, runner: Any) -> str | None:
    """Return the encoder's attention backends; None if unknown before it runs."""
    if not config.model_config.is_multimodal_model or not VLLM_0_13.is_reached:
        return None
    if VLLM_0_32.is_reached:
        from vllm.model_executor.layers.attention.mm_encoder_attention import MMEncoderAttention

        modules = runner.model.modules()
        layers = (module for module in modules if isinstance(module, MMEncoderAttention))
        return ", ".join(sorted({str(layer.attn_backend.name) for layer in layers})) or None
    if not VLLM_0_15.is_reached:
        from vllm.attention.backends.registry import AttentionBackendEnum

        # Layers may not know their own.
        backends = (getattr(module, "attn_backend", None) for module in runner.model.modules())
        names = {b.name for b in backends if isinstance(b, AttentionBackendEnum)}
        return ", ".join(sorted(names)) or None
    from vllm.platforms import current_platform

    chosen = config.model_config.multimodal_config.mm_encoder_attn_backend
    if chosen is not None:
        return str(chosen.name)
    supported = current_platform.get_supported_vit_attn_backends()
    return str(supported[0].name) if supported else None


def attention_layer() -> type:
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    return AttentionLayerBase  # type: ignore[no-any-return] # vLLM has no stubs


def attention_backends(config: Any) -> str:
    from vllm.config import get_layers_from_vllm_config

    layers = get_layers_from_vllm_config(config, attention_layer()).values()
    return ", ".join(sorted({layer.get_attn_backend().get_name() for layer in layers}))


def graph_mode(config: Any) -> str:
    mode = config.compilation_config.cudagraph_mode
    return "NONE" if mode is None else str(mode.name)


def capture_sizes(config: Any) -> tuple[int, ...]:
    """Return the batch sizes, in tokens, of captured CUDA graphs; empty if graphs are off."""
    if graph_mode(config) == "NONE":
        return ()
    return tuple(sorted(config.compilation_config.cudagraph_capture_sizes or ()))


def disable_compilation(config: Any) -> None:
    """Change an engine config so that its worker compiles and captures nothing."""
    from vllm.config.compilation import CUDAGraphMode

    config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    # The compiler's wrapper would hide the tensors inside a step.
    if VLLM_0_20.is_reached:
        config.compilation_config.ir_enable_torch_wrap = False


@contextmanager
def check_graph_mode(config: Any, mode: str) -> Iterator[None]:
    """While open, vLLM checks KV caches for graphs in `mode`; ValueError if blocks are too few."""
    from vllm.config.compilation import CUDAGraphMode

    kind, name = type(config.compilation_config), "resolve_cudagraph_mode_and_sizes"
    # Older releases do not check it.
    if (own := getattr(kind, name, None)) is None:
        yield
        return

    def resolve(config_without: Any, *args: Any, **kwargs: Any) -> Any:
        checked = copy.copy(config_without)
        checked.cudagraph_mode = CUDAGraphMode[mode]
        # Speculative decoding rounds the sizes in place.
        checked.cudagraph_capture_sizes = list(checked.cudagraph_capture_sizes or ())
        own(checked, *args, **kwargs)
        return own(config_without, *args, **kwargs)

    with patch.object(kind, name, resolve):
        yield


def disable_warmup(config: Any) -> None:
    """Change an engine config so that its worker runs no kernel warmup."""
    if VLLM_0_32.is_reached:
        config.kernel_config.enable_jit_warmup = False


def runs_warmup(config: Any) -> bool:
    """Return whether a V2 worker warms up its sampler (vllm/v1/worker/gpu_worker.py of 0.32)."""
    if VLLM_0_32.is_reached:
        return bool(config.kernel_config.enable_jit_warmup)
    return not config.model_config.enforce_eager


# Operations that choose kernels themselves, compiled or not. Their "native" method also calls
# kernels (model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py, 0.32).
SELF_CHOOSING: Final = frozenset({"ChunkGatedDeltaRule"})


def custom_op() -> Any:
    from vllm.model_executor.custom_op import CustomOp

    return CustomOp


def eager_priorities(config: Any) -> Any:
    """Return the kernel priorities of an engine without compilation; None before 0.20."""
    if not VLLM_0_20.is_reached:
        return None
    from vllm.config.compilation import CompilationMode
    from vllm.platforms import current_platform

    eager = copy.copy(config)
    eager.compilation_config = copy.copy(config.compilation_config)
    eager.compilation_config.mode = CompilationMode.NONE
    return current_platform.get_default_ir_op_priority(eager)


# Both runners' estimates capture this many graphs of each mode, the largest first.
_SAMPLES: Final = 2
_FLASHINFER: Final = "vllm.v1.attention.backends.flashinfer"


@dataclass(frozen=True, slots=True)
class Captures:
    """Steps of the graphs that an estimate samples; the engine would capture `full` full graphs.

    `is_overlaid`: the estimate uses the larger of the two modes' first graphs, as vLLM's V1 runner
    does if there are both. `setup_buffers`: what attention allocated in its setup, before captures.
    """

    steps: tuple[Callable[[], Any], ...]
    full: int
    is_overlaid: bool
    setup_buffers: tuple[Any, ...] = ()


@contextmanager
def prepare_graph_estimate(worker: Any, mode: str) -> Iterator[Captures]:
    """Give the worker a graph mode and the least KV cache, as `profile_cudagraph_memory` does."""
    from vllm.config.compilation import CUDAGraphMode

    runner = worker.model_runner
    compilation = runner.compilation_config
    original = dict(vars(compilation))
    compilation.cudagraph_mode = CUDAGraphMode[mode]
    # Speculative decoding rounds the sizes in place.
    if compilation.cudagraph_capture_sizes is not None:
        compilation.cudagraph_capture_sizes = list(compilation.cudagraph_capture_sizes)
    captures, release = _captures_v1, _release_v1
    if uses_v2_runner(worker):
        from vllm.v1.worker.gpu import cudagraph_utils

        captures, release = _captures_v2, cudagraph_utils._teardown_profiling_state
    try:
        with use_config(worker.vllm_config):
            yield captures(runner)
    finally:
        release(runner)
        vars(compilation).update(original)
        clear_workspaces()


def clear_workspaces() -> None:
    """Drop FlashInfer's second workspace, which outlives a worker in a global of vLLM's module."""
    if (module := sys.modules.get(_FLASHINFER)) is None:
        return
    # The second name is the one before 0.24.
    for name in vars(module).keys() & {"trtllm_workspace_buffer", "trtllm_gen_workspace_buffer"}:
        setattr(module, name, None)


def _captures_v1(runner: Any) -> Captures:
    from vllm.config.compilation import CUDAGraphMode

    runner._init_minimal_kv_cache_for_profiling()
    groups = dict(runner.cudagraph_dispatcher.get_capture_descs())
    full = groups.get(CUDAGraphMode.FULL, [])
    # As `_warmup_and_capture` runs it (vllm/v1/worker/gpu_model_runner.py of 0.24 and 0.32).
    options = {"cudagraph_runtime_mode": CUDAGraphMode.NONE, "force_attention": True}
    steps = tuple(
        partial(runner._dummy_run, graph.num_tokens, uniform_decode=graph.uniform, **options)
        for graph in full[:_SAMPLES]
    )
    return Captures(steps, len(full), is_overlaid=len(groups) > 1)


def _release_v1(runner: Any) -> None:
    for keys in runner.cudagraph_dispatcher.cudagraph_keys.values():
        keys.clear()
    runner.cudagraph_dispatcher.keys_initialized = False
    runner._cleanup_profiling_kv_cache()


def _captures_v2(runner: Any) -> Captures:
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu import cudagraph_utils

    with _as_compiled(runner):
        cudagraph_utils._init_minimal_kv_cache_for_profiling(runner)
    groups = runner.cudagraph_manager._capture_descs
    full = groups.get(CUDAGraphMode.FULL, [])
    # The engine captures all piecewise graphs. The largest may be for prompts; the smallest is not.
    pieces = groups.get(CUDAGraphMode.PIECEWISE, [])
    pieces = [pieces[0], pieces[-1]] if pieces else []
    steps = tuple(
        partial(
            runner._dummy_run,
            graph.num_tokens,
            uniform_decode=graph.uniform_token_count is not None,
            skip_attn=False,
        )
        for graph in (*pieces, *full[:_SAMPLES])
    )
    # `init_attn_backend` allocates one for all groups (vllm/v1/worker/gpu/attn_utils.py).
    builders = (b for groups in runner.attn_groups for g in groups for b in g.metadata_builders)
    buffers = (getattr(builder, "_workspace_buffer", None) for builder in builders)
    before = {id(buffer): buffer for buffer in buffers if buffer is not None}
    return Captures(steps, len(full), is_overlaid=False, setup_buffers=tuple(before.values()))


def _as_compiled(runner: Any) -> AbstractContextManager[Any]:
    """While open, the model counts as compiled; otherwise V2 makes no piecewise graphs (0.30)."""
    from vllm.config.compilation import CompilationMode
    from vllm.v1.worker.gpu import model_runner

    name = "has_compiled_submodule"
    is_compiled = runner.compilation_config.mode == CompilationMode.VLLM_COMPILE
    if not is_compiled or getattr(model_runner, name, None) is None:
        return nullcontext()
    return patch.object(model_runner, name, lambda model: True)


def embeds_width(config: Any) -> int:
    model = config.model_config
    return int(model.get_inputs_embeds_size() if VLLM_0_13.is_reached else model.get_hidden_size())


def clear_model_tables() -> None:
    """Clear tables that vLLM keeps for the next model; they belong to the imaginary GPU."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    _ROPE_DICT.clear()
    clear_workspaces()
    if VLLM_0_13.is_reached:
        from vllm.v1.worker.workspace import reset_workspace_manager

        reset_workspace_manager()


@contextmanager
def record_weight_sizes(on_built: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    """Record the bytes of each parameter of models built while open; `on_built` gets the sum."""
    from vllm.model_executor.model_loader import base_loader

    sizes: dict[str, Any] = {}
    original = base_loader.initialize_model

    def initialize(*args: Any, **kwargs: Any) -> Any:
        model = original(*args, **kwargs)
        # Before weights load, because CPU kernels later repack weights.
        sizes.update((name, parameter.nbytes) for name, parameter in model.named_parameters())
        on_built(sum(sizes.values()))
        return model

    with patch.object(base_loader, "initialize_model", initialize):
        yield sizes


def use_config(config: Any) -> Any:
    from vllm.config import set_current_vllm_config

    return set_current_vllm_config(config)
