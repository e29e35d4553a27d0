"""vLLM's multimodal processors, applied as its renderer applies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.utils.torch_utils import set_default_torch_num_threads

from mmcalib.releases.release import VLLM_0_28, VLLM_0_31


def create_processor(config: Any) -> Any:
    """That of a model config."""
    return MULTIMODAL_REGISTRY.create_processor(config)


def apply_processor(processor: Any, prompt_ids: list[int], data: Any) -> Any:
    """Run a multimodal processor on loaded media, as the server's renderer does.

    With as many threads of torch, too (vllm/renderers/base.py, 0.32): one, unless OMP_NUM_THREADS
    says otherwise. More would spin on a busy machine, and take seconds by that.
    """
    items = processor.info.parse_mm_data(data)
    inputs = ProcessorInputs(prompt=prompt_ids, mm_data_items=items)
    with set_default_torch_num_threads():
        return processor.apply(inputs, TimingContext(enabled=False))


def dummy_inputs(processor: Any, modality: str) -> Any:
    """One item of vLLM's dummy builder, processed as for the profile."""
    if VLLM_0_31.reached:
        return processor.get_dummy_mm_inputs({modality: 1})
    config = processor.info.ctx.model_config
    return MULTIMODAL_REGISTRY.get_dummy_mm_inputs(config, {modality: 1}, processor=processor)


def audio_rate_hz(processor: Any) -> int | None:
    """The rate to which vLLM resamples every clip for this model, None where it takes no audio."""
    if "audio" not in processor.info.supported_mm_limits:
        return None
    resampler = getattr(processor.info.get_data_parser(), "audio_resampler", None)
    rate = getattr(resampler, "target_sr", None)
    return int(rate) if rate else None


def device_transport() -> dict[str, str]:
    """The engine argument without which vLLM copies what a processor made on a device back to the
    host (`_postprocess_output`, vllm/multimodal/processing/context.py).
    """
    return {"mm_tensor_ipc": "torch_shm"} if VLLM_0_28.reached else {}


def tiles_counter(processor: Any) -> Callable[[int, int], int] | None:
    """Into how many tiles a model with a list of resolutions cuts an image of this width and
    height, the whole among them; None of a model without such a list.
    """
    config = processor.info.get_hf_config()
    pinpoints = getattr(config, "image_grid_pinpoints", None)
    tile = getattr(getattr(config, "vision_config", None), "image_size", None)
    if not pinpoints or not isinstance(tile, int):
        return None
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

    def tiles(width: int, height: int) -> int:
        rows, columns = get_anyres_image_grid_shape((height, width), pinpoints, tile)
        return int(rows * columns) + 1

    return tiles


def own_size(processor: Any, modality: str) -> dict[str, Any]:
    """The size of pictures that Hugging Face's processor has for a modality under this setting, as
    `mm_kwargs` of vLLM's count: that knows the checkpoint's alone, and Qwen2.5-Omni brings one of
    its own for videos. Empty where it has none.
    """
    own = processor.info.get_hf_processor()
    known = getattr(own, "valid_processor_kwargs", None)
    scope = f"{modality}s_kwargs"
    if "size" not in getattr(known, "_defaults", {}).get(scope, {}):
        return {}
    given = processor.info.ctx.get_merged_mm_kwargs({})
    return {scope: {"size": own._merge_kwargs(known, **given)[scope]["size"]}}


def item_bytes(kwargs: Any) -> int:
    """Bytes of all tensors that go to the encoder together, as vLLM's caches count them."""
    if VLLM_0_31.reached:
        from vllm.multimodal.cache.base import MultiModalCache
    else:
        from vllm.multimodal.cache import MultiModalCache
    return int(MultiModalCache.get_item_size(kwargs))
