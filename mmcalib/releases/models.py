"""Model build, backends, graphs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from mmcalib.releases.release import VLLM_0_13, VLLM_0_15, VLLM_0_20, VLLM_0_23, VLLM_0_32
from mmcalib.releases.runner import uses_v2_runner


def sampler() -> str:
    """Which implementation top-k and top-p sampling has."""
    if not VLLM_0_23.reached:
        # Off unless VLLM_USE_FLASHINFER_SAMPLER turns it on.
        return "torch"
    from vllm.v1.sample.ops.topk_topp_sampler import flashinfer_sampler_supported

    return "FlashInfer" if flashinfer_sampler_supported() else "torch"


def encoder_attention(config: Any, runner: Any) -> str | None:
    """The encoder's attention backends; None where they are not known before it runs."""
    if not config.model_config.is_multimodal_model or not VLLM_0_13.reached:
        return None
    if VLLM_0_32.reached:
        from vllm.model_executor.layers.attention.mm_encoder_attention import MMEncoderAttention

        found = (one for one in runner.model.modules() if isinstance(one, MMEncoderAttention))
        names = {str(one.attn_backend.name) for one in found}
        return ", ".join(sorted(names)) or None
    if not VLLM_0_15.reached:
        return _towers(runner.model)
    from vllm.platforms import current_platform

    chosen = config.model_config.multimodal_config.mm_encoder_attn_backend
    if chosen is not None:
        return str(chosen.name)
    supported = current_platform.get_supported_vit_attn_backends()
    return str(supported[0].name) if supported else None


def _towers(model: Any) -> str | None:
    """Before 0.15 an encoder's layers may not know their backend; towers keep it beside them."""
    from vllm.attention.backends.registry import AttentionBackendEnum

    chosen = (getattr(one, "attn_backend", None) for one in model.modules())
    names = {one.name for one in chosen if isinstance(one, AttentionBackendEnum)}
    return ", ".join(sorted(names)) or None


def attention_layer() -> type:
    """The class of every layer that keeps a KV cache."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    return AttentionLayerBase  # type: ignore[no-any-return] # vLLM has no stubs


def attention(config: Any) -> str:
    """The backends of the decoder's layers."""
    from vllm.config import get_layers_from_vllm_config

    layers = get_layers_from_vllm_config(config, attention_layer()).values()
    return ", ".join(sorted({layer.get_attn_backend().get_name() for layer in layers}))


def graph_mode(config: Any) -> str:
    """The name of the mode of CUDA graphs."""
    mode = config.compilation_config.cudagraph_mode
    return "NONE" if mode is None else str(mode.name)


def capture_sizes(config: Any) -> tuple[int, ...]:
    """The batches, in tokens, that CUDA graphs are captured of; none where they are off."""
    if graph_mode(config) == "NONE":
        return ()
    return tuple(sorted(config.compilation_config.cudagraph_capture_sizes or ()))


def forgo(config: Any) -> None:
    """Change an engine config so that its worker compiles and captures nothing."""
    from vllm.config.compilation import CUDAGraphMode

    config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    # Wrapped for the compiler, a step would hide what it holds inside.
    if VLLM_0_20.reached:
        config.compilation_config.ir_enable_torch_wrap = False


@contextmanager
def check_graph_mode(config: Any, mode: str) -> Iterator[None]:
    """While open, a KV cache is checked as for this mode of CUDA graphs, which the worker forgoes:
    raises vLLM's ValueError where recurrent layers have fewer blocks than sequences, say.
    """
    from vllm.config.compilation import CUDAGraphMode

    kind, name = type(config.compilation_config), "resolve_cudagraph_mode_and_sizes"
    # Older releases have no such check.
    if (own := getattr(kind, name, None)) is None:
        yield
        return

    def resolve(forgoing: Any, *args: Any, **kwargs: Any) -> Any:
        asked = copy.copy(forgoing)
        asked.cudagraph_mode = CUDAGraphMode[mode]
        # Speculative decoding rounds them in place.
        asked.cudagraph_capture_sizes = list(asked.cudagraph_capture_sizes or ())
        own(asked, *args, **kwargs)
        return own(forgoing, *args, **kwargs)

    with patch.object(kind, name, resolve):
        yield


def forgo_warmup(config: Any) -> None:
    """Change an engine config so that its worker, once it is up, tries no kernels."""
    if VLLM_0_32.reached:
        config.kernel_config.enable_jit_warmup = False


# Operations that choose among kernels themselves, compiled or not: the name says native, but what
# it calls are kernels of its own (model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py, 0.32).
CHOOSE_THEMSELVES: Final = frozenset({"ChunkGatedDeltaRule"})


def custom_op() -> Any:
    """The class of layers that have a CUDA kernel of vLLM's own."""
    from vllm.model_executor.custom_op import CustomOp

    return CustomOp


def eager_priorities(config: Any) -> Any:
    """Which kernels an engine takes that does not compile; None before they had an order."""
    if not VLLM_0_20.reached:
        return None
    from vllm.config.compilation import CompilationMode
    from vllm.platforms import current_platform

    eager = copy.copy(config)
    eager.compilation_config = copy.copy(config.compilation_config)
    eager.compilation_config.mode = CompilationMode.NONE
    return current_platform.get_default_ir_op_priority(eager)


# Graphs of each mode that both runners' estimates capture, the largest first.
_SAMPLES: Final = 2
_FLASHINFER: Final = "vllm.v1.attention.backends.flashinfer"


@dataclass(frozen=True, slots=True)
class Captures:
    """Steps of the graphs that an estimate samples; of the full ones there would be `full`.

    `overlaid`: of each mode's first graph the larger is taken, as vLLM's first runner does where
    there are both. `before` is what attention allocated when it was set up, ahead of any capture.
    """

    steps: tuple[Callable[[], Any], ...]
    full: int
    overlaid: bool
    before: tuple[Any, ...] = ()


@contextmanager
def estimated(worker: Any, mode: str) -> Iterator[Captures]:
    """While open, the worker has this graph mode, as far as attention allows, and the smallest KV
    cache, as `profile_cudagraph_memory` makes it; afterwards nothing of either.
    """
    from vllm.config import set_current_vllm_config
    from vllm.config.compilation import CUDAGraphMode

    runner = worker.model_runner
    compilation = runner.compilation_config
    kept = dict(vars(compilation))
    compilation.cudagraph_mode = CUDAGraphMode[mode]
    # Speculative decoding rounds them in place.
    if compilation.cudagraph_capture_sizes is not None:
        compilation.cudagraph_capture_sizes = list(compilation.cudagraph_capture_sizes)
    captures, release = (_second, _release_second) if uses_v2_runner(worker) else (_first, _release)
    try:
        with set_current_vllm_config(worker.vllm_config):
            yield captures(runner)
    finally:
        release(runner)
        vars(compilation).update(kept)
        forget_workspaces()


def forget_workspaces() -> None:
    """FlashInfer's second workspace outlives a worker, in a global of vLLM's module."""
    if (module := sys.modules.get(_FLASHINFER)) is None:
        return
    # The second is its name until 0.24.
    for name in vars(module).keys() & {"trtllm_workspace_buffer", "trtllm_gen_workspace_buffer"}:
        setattr(module, name, None)


def _first(runner: Any) -> Captures:
    from vllm.config.compilation import CUDAGraphMode

    runner._init_minimal_kv_cache_for_profiling()
    groups = dict(runner.cudagraph_dispatcher.get_capture_descs())
    full = groups.get(CUDAGraphMode.FULL, [])

    def step(graph: Any) -> Callable[[], Any]:
        # As `_warmup_and_capture` runs it (vllm/v1/worker/gpu_model_runner.py of 0.24 and 0.32).
        return lambda: runner._dummy_run(
            graph.num_tokens,
            cudagraph_runtime_mode=CUDAGraphMode.NONE,
            force_attention=True,
            uniform_decode=graph.uniform,
        )

    steps = tuple(step(graph) for graph in full[:_SAMPLES])
    return Captures(steps, len(full), overlaid=len(groups) > 1)


def _release(runner: Any) -> None:
    for keys in runner.cudagraph_dispatcher.cudagraph_keys.values():
        keys.clear()
    runner.cudagraph_dispatcher.keys_initialized = False
    runner._cleanup_profiling_kv_cache()


def _second(runner: Any) -> Captures:
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu import cudagraph_utils

    with _as_compiled(runner):
        cudagraph_utils._init_minimal_kv_cache_for_profiling(runner)
    groups = runner.cudagraph_manager._capture_descs
    full = groups.get(CUDAGraphMode.FULL, [])
    # Of these all are captured; the largest may be prompts, the smallest is not.
    pieces = groups.get(CUDAGraphMode.PIECEWISE, [])
    pieces = [pieces[0], pieces[-1]] if pieces else []

    def step(graph: Any) -> Callable[[], Any]:
        uniform = graph.uniform_token_count is not None
        return lambda: runner._dummy_run(graph.num_tokens, uniform_decode=uniform, skip_attn=False)

    steps = tuple(step(graph) for graph in (*pieces, *full[:_SAMPLES]))
    # `init_attn_backend` allocates it, for all groups one (vllm/v1/worker/gpu/attn_utils.py).
    builders = (
        one for groups in runner.attn_groups for group in groups for one in group.metadata_builders
    )
    found = (getattr(one, "_workspace_buffer", None) for one in builders)
    before = {id(one): one for one in found if one is not None}
    return Captures(steps, len(full), overlaid=False, before=tuple(before.values()))


def _as_compiled(runner: Any) -> AbstractContextManager[Any]:
    """While open, the model passes for compiled: else the V2 runner has no pieces (0.30)."""
    from vllm.config.compilation import CompilationMode
    from vllm.v1.worker.gpu import model_runner

    name = "has_compiled_submodule"
    is_compiled = runner.compilation_config.mode == CompilationMode.VLLM_COMPILE
    if not is_compiled or getattr(model_runner, name, None) is None:
        return nullcontext()
    return patch.object(model_runner, name, lambda model: True)


def _release_second(runner: Any) -> None:
    from vllm.v1.worker.gpu import cudagraph_utils

    cudagraph_utils._teardown_profiling_state(runner)


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
    """While open, a built model leaves its parameters' sizes, and `on_built` hears their sum.

    Read before anything is filled: CPU kernels later repack weights into tensors of their own.
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

    with patch.object(base_loader, "initialize_model", initialize):
        yield sizes


def built_under(config: Any) -> Any:
    """While open, vLLM's layers are built under this engine config."""
    from vllm.config import set_current_vllm_config

    return set_current_vllm_config(config)


def quantizes() -> bool:
    """Whether the model that is being built is quantized."""
    from vllm.config import get_current_vllm_config

    return get_current_vllm_config().quant_config is not None
