"""vLLM's own encoder budget and the dummy items that its profile would run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mmcalib.child.largest import largest_clip
from mmcalib.child.media import sampled_of
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import AskBudget
from mmcalib.releases.budget import budget_of, multimodal_budget
from mmcalib.releases.configs import served_config
from mmcalib.releases.processors import dummy_inputs, item_bytes


def budget(request: AskBudget) -> Budget:
    """Build the engine config as `vllm serve` would and read its MultiModalBudget."""
    config = served_config(request.engine_args)
    mm = multimodal_budget(config)
    found = budget_of(config, mm, largest_clip)
    if not request.build_dummy:
        return found
    only = found.profiled_modality if request.only_profiled else None
    names = [only] if only else found.max_tokens_per_item
    return replace(found, dummies={name: dummy(mm.processor, name) for name in names})


def dummy(processor: Any, modality: Modality) -> Dummy:
    """The item that vLLM's dummy builder makes, clamped by the size hints as it clamps them."""
    inputs = dummy_inputs(processor, modality)
    placeholders = inputs["mm_placeholders"][modality]
    return Dummy(
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensor_bytes=sum(item_bytes(item) for item in inputs["mm_kwargs"][modality]),
        size=_dummy_size(processor, modality),
    )


def _dummy_size(processor: Any, modality: Modality) -> dict[str, int]:
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
