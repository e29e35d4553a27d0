"""Where vLLM's releases differ in what a rehearsal asks them, after the stand-ins are in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mmcalib.child.rehearsal.release import VLLM_0_10, VLLM_0_11, VLLM_0_15, VLLM_0_23, VLLM_0_32
from mmcalib.domain.budget import Budget

# The model's own method that runs its encoders.
ENCODER: Final = "embed_multimodal" if VLLM_0_15.reached else "get_multimodal_embeddings"


def uses_v2_runner(worker: Any) -> bool:
    """Whether it is the second of vLLM's model runners; older releases have one."""
    if VLLM_0_15.reached:
        return bool(worker.use_v2_model_runner)
    return False


def read_budget(config: Any, runner: Any) -> Budget | None:
    """The MultiModalBudget of an engine config; None for a model that takes text alone.

    A release without `vllm.multimodal.encoder_budget` is asked for its model runner's own.
    """
    if not config.model_config.is_multimodal_model:
        return None
    if VLLM_0_23.reached:
        return _encoder_budget(config)
    if not VLLM_0_10.reached:
        return _profiled(config, runner)
    mm = runner.mm_budget
    if mm is None:
        return None
    modality = mm.get_modality_with_max_tokens() if mm.max_tokens_by_modality else None
    return _budget(
        config,
        (mm.encoder_compute_budget, mm.encoder_cache_size),
        mm.max_tokens_by_modality,
        mm.max_items_per_prompt_by_modality,
        mm.max_items_per_batch_by_modality,
        modality,
    )


def _encoder_budget(config: Any) -> Budget:
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    if VLLM_0_32.reached:
        from mmcalib.child.budget import read_budget as read

        return read(config)
    mm = MultiModalBudget(config, MULTIMODAL_REGISTRY)
    modality = mm.get_modality_with_max_tokens() if mm.mm_max_toks_per_item else None
    return _budget(
        config,
        (mm.encoder_compute_budget, mm.encoder_cache_size),
        mm.mm_max_toks_per_item,
        mm.mm_max_items_per_prompt,
        mm.mm_max_items_per_batch,
        modality,
    )


def _profiled(config: Any, runner: Any) -> Budget | None:
    """What the oldest releases' `profile_run` computes on its way: items are rounded up."""
    most = runner.mm_registry.get_max_tokens_per_item_by_nonzero_modality(config.model_config)
    if not most:
        return None
    limits = runner.mm_registry.get_mm_limits_per_prompt(config.model_config)
    modality = max(most, key=lambda name: most[name])
    compute, cache = runner.max_num_encoder_input_tokens, runner.encoder_cache_size
    items = {
        name: min(-(-min(compute, cache) // tokens), runner.max_num_reqs * limits[name])
        for name, tokens in most.items()
    }
    per_prompt = {name: limits[name] for name in most}
    return _budget(config, (compute, cache), most, per_prompt, items, modality)


def _budget(
    config: Any,
    compute_and_cache: tuple[int, int],
    most: Mapping[str, int],
    per_prompt: Mapping[str, int],
    per_batch: Mapping[str, int],
    modality: str | None,
) -> Budget:
    """One form for what every release has under names of its own."""
    compute, cache = compute_and_cache
    return Budget(
        encoder_compute_budget=compute,
        encoder_cache_size=cache,
        max_tokens_per_item=dict(most),
        max_items_per_prompt=dict(per_prompt),
        max_items_per_batch=dict(per_batch),
        profiled_modality=modality,
        profiled_items=per_batch[modality] if modality else 0,
        dummies={},
        max_model_len=config.model_config.max_model_len,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_num_seqs=config.scheduler_config.max_num_seqs,
    )


def embeds_width(config: Any) -> int:
    """Entries of one encoder output as the decoder takes it."""
    if VLLM_0_15.reached:
        return int(config.model_config.get_inputs_embeds_size())
    return int(config.model_config.get_hidden_size())


def resolve_layout(config: Any, worker: Any, specs: list[Any]) -> None:
    """Choose the KV cache's layout, where that is a step of its own before sizes are known."""
    if not VLLM_0_32.reached:
        return
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

    layouts = worker.get_supported_kv_cache_layouts()
    resolve_kv_cache_layout(config, [layouts], specs)


def kv_cache_config(config: Any, specs: dict[str, Any], available_bytes: int) -> Any:
    """What the engine core makes of one worker's layers. Raises ValueError where nothing fits."""
    from vllm.v1.core import kv_cache_utils as utils

    if VLLM_0_11.reached:
        return utils.get_kv_cache_configs(config, [specs], [available_bytes])[0]
    return utils.get_kv_cache_config(config, specs, available_bytes)


def kv_cache_tokens(config: Any, layout: Any) -> tuple[int, float]:
    """The "GPU KV cache size" and "Maximum concurrency" that startup prints.

    Older releases count the blocks of one group, the oldest divide them by the longest request.
    """
    from vllm.v1.core import kv_cache_utils as utils

    longest = config.model_config.max_model_len
    groups = layout.kv_cache_groups
    tokens = layout.num_blocks // len(groups) * min(g.kv_cache_spec.block_size for g in groups)
    if not VLLM_0_10.reached:
        return tokens, tokens / longest
    concurrency = utils.get_max_concurrency_for_kv_cache_config(config, layout)
    return (int(concurrency * longest) if VLLM_0_23.reached else tokens), concurrency


def subtracts_graphs() -> bool:
    """Whether startup takes its estimate of CUDA graphs off the KV cache: since 0.21, if not told
    otherwise by the environment.
    """
    from vllm import envs

    return bool(getattr(envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False))


def counts_nccl() -> bool:
    """Whether NCCL starts after vLLM's first look at the memory, and so counts as used: before
    0.11. Later it starts first, and only what is free may shrink by it.
    """
    return not VLLM_0_11.reached


def sampler() -> str:
    """Which implementation top-k and top-p sampling has."""
    if not VLLM_0_23.reached:
        # Off unless VLLM_USE_FLASHINFER_SAMPLER turns it on.
        return "torch"
    from vllm.v1.sample.ops.topk_topp_sampler import flashinfer_sampler_supported

    return "FlashInfer" if flashinfer_sampler_supported() else "torch"


def encoder_attention(config: Any, runner: Any) -> str | None:
    """The encoder's attention backends; None where they are not known before it runs."""
    if not config.model_config.is_multimodal_model or not VLLM_0_15.reached:
        return None
    if VLLM_0_32.reached:
        from vllm.model_executor.layers.attention.mm_encoder_attention import MMEncoderAttention

        found = (one for one in runner.model.modules() if isinstance(one, MMEncoderAttention))
        names = {str(one.attn_backend.name) for one in found}
        return ", ".join(sorted(names)) or None
    from vllm.platforms import current_platform

    chosen = config.model_config.multimodal_config.mm_encoder_attn_backend
    if chosen is not None:
        return str(chosen.name)
    supported = current_platform.get_supported_vit_attn_backends()
    return str(supported[0].name) if supported else None


def attention_layer() -> type:
    """The class of every layer that keeps a KV cache."""
    if VLLM_0_10.reached:
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        return AttentionLayerBase  # type: ignore[no-any-return] # vLLM has no stubs
    from vllm.attention.layer import Attention

    return Attention  # type: ignore[no-any-return]


def requested_bytes(worker: Any, total_bytes: int) -> int:
    """The share of the GPU that the engine may take, as the worker rounds it."""
    if VLLM_0_10.reached:
        return int(worker.requested_memory)
    return int(total_bytes * worker.cache_config.gpu_memory_utilization)


def counts_context() -> bool:
    """Whether everything that is taken on the GPU counts, the CUDA context as well: before 0.10."""
    return not VLLM_0_10.reached


def attention(config: Any) -> str:
    """The backends of the decoder's layers."""
    from vllm.config import get_layers_from_vllm_config

    layers = get_layers_from_vllm_config(config, attention_layer()).values()
    if VLLM_0_10.reached:
        names = {layer.get_attn_backend().get_name() for layer in layers}
    else:
        names = {layer.backend.name for layer in layers}
    return ", ".join(sorted(names))


def forget_models() -> None:
    """vLLM keeps tables for the next model of the process: they are of this GPU's era."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    _ROPE_DICT.clear()
    if VLLM_0_15.reached:
        from vllm.v1.worker.workspace import reset_workspace_manager

        reset_workspace_manager()
