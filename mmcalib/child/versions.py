"""Where vLLM's versions differ, and where mmcalib reaches into it. Nothing else does, but for what
a CUDA worker keeps (`kept`), which is read without importing it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import psutil
import torch
from vllm.multimodal import video as vllm_video
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY
from vllm.transformers_utils.processor import get_video_processor_cls_name
from vllm.utils.torch_utils import set_default_torch_num_threads

from mmcalib.domain.shapes import VideoShape


def apply_processor(processor: Any, prompt_ids: list[int], data: Any) -> Any:
    """Run a multimodal processor on loaded media, as the server's renderer does.

    With as many threads of torch, too (vllm/renderers/base.py, 0.32): one, unless OMP_NUM_THREADS
    says otherwise. More would spin on a busy machine, and take seconds by that.
    """
    items = processor.info.parse_mm_data(data)
    inputs = ProcessorInputs(prompt=prompt_ids, mm_data_items=items)
    with set_default_torch_num_threads():
        return processor.apply(inputs, TimingContext(enabled=False))


def processor_threads() -> int:
    """Threads of torch on the CPU with which `apply_processor` runs."""
    with set_default_torch_num_threads():
        return int(torch.get_num_threads())


def video_processor_name(config: Any) -> str | None:
    """The class name by which vLLM picks the video loader, None where the model has none."""
    try:
        name: str | None = get_video_processor_cls_name(config)
    except (ValueError, OSError, AttributeError):
        return None
    return name


def video_loader_name(config: Any) -> str | None:
    """The loader that serves this model's videos when nothing else is asked for."""
    name = video_processor_name(config)
    backend: str | None = VIDEO_LOADER_REGISTRY.get_backend_for_video_processor(name)
    return backend


def audio_rate_hz(processor: Any) -> int | None:
    """The rate to which vLLM resamples every clip for this model, None where it takes no audio."""
    if "audio" not in processor.info.supported_mm_limits:
        return None
    resampler = getattr(processor.info.get_data_parser(), "audio_resampler", None)
    rate = getattr(resampler, "target_sr", None)
    return int(rate) if rate else None


def processor_device_option() -> str:
    """vLLM's option that puts the processor on the accelerator; empty in releases before it."""
    return "--mm-processor-device" if _has_argument("mm_processor_device") else ""


def device_transport() -> dict[str, str]:
    """The engine argument without which 0.32 copies what a processor made on a device back to the
    host (`_postprocess_output`, vllm/multimodal/processing/context.py).
    """
    return {"mm_tensor_ipc": "torch_shm"} if _has_argument("mm_tensor_ipc") else {}


def _has_argument(name: str) -> bool:
    from vllm.engine.arg_utils import EngineArgs

    return name in {field.name for field in fields(EngineArgs)}


# Frames as loaded, made contiguous, resized and cut into patches, all at once at the worst.
_COPIES_OF_FRAMES = 4
_MEMORY_SHARE = 0.8


def require_host_memory(needed_bytes: int) -> None:
    """Refuse what would get this process killed. Raises MemoryError with both figures."""
    free = psutil.virtual_memory().available
    if needed_bytes > _MEMORY_SHARE * free:
        raise MemoryError(
            f"processing it takes about {needed_bytes / 2**30:.0f} GiB of host memory, "
            f"{free / 2**30:.0f} GiB are free here"
        )


@contextmanager
def blank_videos(shape: VideoShape) -> Iterator[None]:
    """While open, every video that vLLM's loaders decode is a blank one of this shape.

    Only the decoder is replaced: which frames are sampled stays the loader's own decision.
    """
    # Not at the top: older releases lack it, and their engines are started all the same.
    from vllm.multimodal.video_decoders import VideoSourceMetadata

    def decode(
        backend: str,
        loader: Any,
        data: bytes,
        target: Any,
        sampling_kwargs: dict[str, Any],
        backend_kwargs: dict[str, Any],
        *,
        frame_recovery: bool,
    ) -> Any:
        duration_s = shape.num_frames / shape.fps if shape.fps > 0 else 0.0
        source = loader._prepare_source(
            VideoSourceMetadata(shape.num_frames, shape.fps, duration_s)
        )
        frames = loader.compute_frames_index_to_sample(
            source=source, target=target, **sampling_kwargs
        )
        size = (len(frames), shape.height_px, shape.width_px, 3)
        require_host_memory(math.prod(size) * _COPIES_OF_FRAMES)
        pixels = np.zeros(size, dtype=np.uint8)
        return pixels, source, frames, frames

    original = vllm_video.decode_video
    vllm_video.decode_video = decode
    try:
        yield
    finally:
        vllm_video.decode_video = original


def encoder_batches(
    worker: Any, modality: str, media: Any, items: int
) -> tuple[list[dict[str, Any]], int]:
    """One processed item, `items` times over, batched as the model runner batches them for the
    encoder; and the embeds of one.
    """
    from vllm.multimodal.utils import group_and_batch_mm_kwargs

    runner, processor = worker.model_runner, encoder_budget(worker).processor
    text = processor.dummy_inputs.get_dummy_text({modality: 1})
    ids = processor.info.get_tokenizer().encode(text)
    output = apply_processor(processor, ids, {modality: [media]})
    equal = [(modality, output["mm_kwargs"][modality][0])] * items
    # As in `_execute_mm_encoder` (vllm/v1/worker/gpu_model_runner.py, 0.32).
    alone = modality == "video" and (
        getattr(runner, "is_multimodal_pruning_enabled", False)
        or getattr(runner, "requires_sequential_video_encoding", False)
    )
    batches = [
        kwargs
        for group in ([[one] for one in equal] if alone else [equal])
        for _, _, kwargs in group_and_batch_mm_kwargs(group, device=runner.device, pin_memory=False)
    ]
    placeholders = output["mm_placeholders"][modality]
    return batches, sum(p.get_num_embeds() for p in placeholders)


def item_bytes(kwargs: Any) -> int:
    """Bytes of all tensors that go to the encoder together, as vLLM's caches count them."""
    try:
        from vllm.multimodal.cache.base import MultiModalCache
    except ImportError:  # before 0.32
        from vllm.multimodal.cache import MultiModalCache
    return int(MultiModalCache.get_item_size(kwargs))


class RequestWatch:
    """Notes what the engine counts: each request's items, and the encoder tokens of every step."""

    def __init__(self, llm: Any) -> None:
        self.item_tokens: dict[str, tuple[int, ...]] = {}
        self.last_added = ""
        # Tokens of the prompt and of its items.
        self.added: tuple[int, tuple[int, ...]] = (0, ())
        self.largest_encoder_step_tokens = 0
        self._embeds: dict[str, list[int]] = {}
        self._client = llm.llm_engine.engine_core
        self._scheduler = self._client.engine_core.scheduler
        self._add, self._schedule = self._client.add_request, self._scheduler.schedule

    def __enter__(self) -> RequestWatch:
        self._client.add_request = self._noting_items
        self._scheduler.schedule = self._noting_steps
        return self

    def __exit__(self, *_: object) -> None:
        del self._client.add_request, self._scheduler.schedule

    def _noting_items(self, request: Any) -> Any:
        positions = [feature.mm_position for feature in request.mm_features or ()]
        public_id = getattr(request, "external_req_id", None) or request.request_id
        self.last_added = public_id
        self.item_tokens[public_id] = tuple(p.length for p in positions)
        self.added = len(request.prompt_token_ids or ()), self.item_tokens[public_id]
        self._embeds[request.request_id] = [p.get_num_embeds() for p in positions]
        return self._add(request)

    def _noting_steps(self, *args: Any, **kwargs: Any) -> Any:
        step = self._schedule(*args, **kwargs)
        tokens = sum(
            self._embeds[request][index]
            for request, indices in step.scheduled_encoder_inputs.items()
            for index in indices
        )
        self.largest_encoder_step_tokens = max(self.largest_encoder_step_tokens, tokens)
        return step


@contextmanager
def weights_as_loaded() -> Iterator[dict[str, Any]]:
    """While open, a model that is built leaves its parameters' sizes in the yielded mapping.

    Read when the model is built: CPU kernels later repack weights into tensors of their own.
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
        return model

    base_loader.initialize_model = initialize
    try:
        yield sizes
    finally:
        base_loader.initialize_model = original


def encoder_budget(worker: Any) -> Any:
    """The encoder budget of this worker; None for a model that takes text alone.

    The second of vLLM's model runners builds one for its profile and does not keep it.
    """
    runner = worker.model_runner
    if hasattr(runner, "mm_budget"):
        return runner.mm_budget
    if not worker.vllm_config.model_config.is_multimodal_model:
        return None
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    return MultiModalBudget(worker.vllm_config, MULTIMODAL_REGISTRY)
