"""vLLM's own encoder budget and the dummy items that its profile would run."""

from __future__ import annotations

from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.encoder_budget import MultiModalBudget
from vllm.usage.usage_lib import UsageContext

from mmcalib.child.largest import largest_clip
from mmcalib.child.media import sampled_of
from mmcalib.child.versions import item_bytes
from mmcalib.domain.budget import Budget, Dummy
from mmcalib.engine.messages import AskBudget


def budget(request: AskBudget) -> Budget:
    """Build the engine config as `vllm serve` would and read its MultiModalBudget."""
    args = EngineArgs(**request.engine_args)
    config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    return read_budget(config, build_dummy=request.build_dummy, only_profiled=request.only_profiled)


def read_budget(config: Any, *, build_dummy: bool = False, only_profiled: bool = False) -> Budget:
    """The MultiModalBudget of an engine config that is already built."""
    mm = MultiModalBudget(config, MULTIMODAL_REGISTRY, enable_cache=False)
    modality = mm.get_modality_with_max_tokens() if mm.mm_max_toks_per_item else None
    dummies = {}
    if build_dummy:
        names = [modality] if only_profiled and modality else mm.mm_max_toks_per_item
        dummies = {name: dummy(mm.processor, name) for name in names}
    return Budget(
        encoder_compute_budget=mm.encoder_compute_budget,
        encoder_cache_size=mm.encoder_cache_size,
        # They come from a set, in any order.
        max_tokens_per_item=dict(sorted(mm.mm_max_toks_per_item.items())),
        max_items_per_prompt=dict(mm.mm_max_items_per_prompt),
        max_items_per_batch=dict(mm.mm_max_items_per_batch),
        profiled_modality=modality,
        profiled_items=mm.mm_max_items_per_batch[modality] if modality else 0,
        dummies=dummies,
        max_model_len=config.model_config.max_model_len,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        largest_clip=largest_clip(config.model_config, mm.processor)
        if "video" in mm.mm_max_toks_per_item
        else None,
    )


def dummy(processor: Any, modality: str) -> Dummy:
    """The item that vLLM's dummy builder makes, clamped by the size hints as it clamps them."""
    inputs = processor.get_dummy_mm_inputs({modality: 1})
    placeholders = inputs["mm_placeholders"][modality]
    return Dummy(
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensor_bytes=sum(item_bytes(item) for item in inputs["mm_kwargs"][modality]),
        size=_dummy_size(processor, modality),
    )


def _dummy_size(processor: Any, modality: str) -> dict[str, int]:
    info = processor.info
    options = info.ctx.get_mm_config().limit_per_prompt
    data = processor.dummy_inputs.get_dummy_mm_data(
        info.ctx.model_config.max_model_len, {modality: 1}, options
    )
    media = data[modality]
    first = media[0] if isinstance(media, list) else media
    if modality == "audio":
        samples = first[0] if isinstance(first, tuple) else first
        return {"length": int(samples.shape[-1])}
    if modality == "image":
        width, height = first.size
        return {"width": int(width), "height": int(height)}
    frames, width, height = sampled_of(first if isinstance(first, tuple) else (first, {}))
    return {"num_frames": frames, "width": width, "height": height}
