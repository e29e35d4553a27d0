"""vLLM's own encoder budget, in the one form that every release's has here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmcalib.domain.memory import Budget, Clip
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.releases.release import VLLM_0_10, VLLM_0_20, VLLM_0_28
from mmcalib.releases.runner import uses_v2_runner

# The largest clip under a model config, by its processor.
LargestClip = Callable[[Any, Any], Clip | None]


def multimodal_budget(config: Any) -> Any:
    """vLLM's MultiModalBudget of an engine config, since 0.23."""
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    if VLLM_0_28.reached:
        return MultiModalBudget(config, MULTIMODAL_REGISTRY, enable_cache=False)
    return MultiModalBudget(config, MULTIMODAL_REGISTRY)


def worker_budget(worker: Any) -> Any:
    """The MultiModalBudget of this worker; None for a model that takes text alone.

    The second of vLLM's model runners builds one for its profile and does not keep it.
    """
    if not uses_v2_runner(worker):
        return worker.model_runner.mm_budget
    if not worker.vllm_config.model_config.is_multimodal_model:
        return None
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    return MultiModalBudget(worker.vllm_config, MULTIMODAL_REGISTRY)


def budget_of(config: Any, mm: Any, largest_clip: LargestClip) -> Budget:
    """What a MultiModalBudget says. Of releases before 0.28 no largest clip is known."""
    most = mm.mm_max_toks_per_item
    known = VLLM_0_28.reached and "video" in most
    return _budget(
        config,
        (mm.encoder_compute_budget, mm.encoder_cache_size),
        most,
        mm.mm_max_items_per_prompt,
        mm.mm_max_items_per_batch,
        mm.get_modality_with_max_tokens() if most else None,
        largest_clip(config.model_config, mm.processor) if known else None,
    )


def read_budget(config: Any, runner: Any, largest_clip: LargestClip) -> Budget | None:
    """The encoder budget of an engine config; None for a model that takes text alone.

    A release without `vllm.multimodal.encoder_budget` is asked for its model runner's own.
    """
    if not config.model_config.is_multimodal_model:
        return None
    if VLLM_0_20.reached:
        return budget_of(config, multimodal_budget(config), largest_clip)
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
    largest_clip: Clip | None = None,
) -> Budget:
    compute, cache = compute_and_cache
    return Budget(
        encoder_compute_budget=compute,
        encoder_cache_size=cache,
        max_tokens_per_item=_by_modality(most),
        max_items_per_prompt=_by_modality(per_prompt),
        max_items_per_batch=_by_modality(per_batch),
        profiled_modality=_modality(modality) if modality else None,
        profiled_items=per_batch[modality] if modality else 0,
        dummies={},
        max_model_len=config.model_config.max_model_len,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        largest_clip=largest_clip,
    )


def _by_modality(figures: Mapping[str, int]) -> dict[Modality, int]:
    # They come from a set, in any order.
    return {_modality(name): figures[name] for name in sorted(figures)}


def _modality(name: str) -> Modality:
    """Raises ValueError for vLLM's own others, such as the `vision_chunk` of Kimi-K2.5."""
    for known in MODALITIES:
        if name == known:
            return known
    raise ValueError(f"the model takes {name}, of which mmcalib knows no items")
