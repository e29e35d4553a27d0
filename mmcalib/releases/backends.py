"""Which implementations vLLM chose: attention, sampling."""

from __future__ import annotations

from typing import Any

from mmcalib.releases.release import VLLM_0_10, VLLM_0_13, VLLM_0_15, VLLM_0_23, VLLM_0_32


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
    """Before 0.15 an encoder has no layer of its own for it everywhere; towers keep what they chose
    beside their layers.
    """
    from vllm.attention.backends.registry import AttentionBackendEnum

    chosen = (getattr(one, "attn_backend", None) for one in model.modules())
    names = {one.name for one in chosen if isinstance(one, AttentionBackendEnum)}
    return ", ".join(sorted(names)) or None


def attention_layer() -> type:
    """The class of every layer that keeps a KV cache."""
    if VLLM_0_10.reached:
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        return AttentionLayerBase  # type: ignore[no-any-return] # vLLM has no stubs
    from vllm.attention.layer import Attention

    return Attention  # type: ignore[no-any-return]


def attention(config: Any) -> str:
    """The backends of the decoder's layers."""
    from vllm.config import get_layers_from_vllm_config

    layers = get_layers_from_vllm_config(config, attention_layer()).values()
    if VLLM_0_10.reached:
        names = {layer.get_attn_backend().get_name() for layer in layers}
    else:
        names = {layer.backend.name for layer in layers}
    return ", ".join(sorted(names))


def windows_wrapper() -> Any:
    """vLLM's operation that loops over an encoder's windows, registered when it is imported."""
    from vllm.v1.attention.ops.vit_attn_wrappers import torch_sdpa_wrapper

    return torch_sdpa_wrapper
