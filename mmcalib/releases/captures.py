"""What startup runs to estimate its CUDA graphs, without capturing any."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.releases.runner import uses_v2_runner

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
    """While open, the worker has the smallest KV cache, as vLLM's `profile_cudagraph_memory` makes
    it, and this mode of CUDA graphs as far as its attention allows. Afterwards it has neither, nor
    what attention kept.
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


@contextmanager
def _as_compiled(runner: Any) -> Iterator[None]:
    """While open, a rehearsed model passes for compiled where it would be: since 0.30 the second
    runner captures no pieces of another.
    """
    from vllm.config.compilation import CompilationMode
    from vllm.v1.worker.gpu import model_runner

    name = "has_compiled_submodule"
    own = getattr(model_runner, name, None)
    if own is None or runner.compilation_config.mode != CompilationMode.VLLM_COMPILE:
        yield
        return
    setattr(model_runner, name, lambda model: True)
    try:
        yield
    finally:
        setattr(model_runner, name, own)


def _release_second(runner: Any) -> None:
    from vllm.v1.worker.gpu import cudagraph_utils

    cudagraph_utils._teardown_profiling_state(runner)
