"""vLLM's processors, media loaders and chat renderers, and blank media for them."""

from __future__ import annotations

import io
import math
import sys
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import torch
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal import video as vllm_video
from vllm.multimodal.media import MediaConnector, audio
from vllm.multimodal.media.image import ImageMediaIO
from vllm.multimodal.media.video import VideoMediaIO
from vllm.multimodal.parse import AudioProcessorItems, MultiModalDataItems
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.transformers_utils.processor import get_video_processor_cls_name
from vllm.utils.torch_utils import set_default_torch_num_threads

from mmcalib.domain.shapes import VideoShape
from mmcalib.releases.release import VLLM_0_29, VLLM_0_31


def create_processor(config: Any) -> Any:
    return MULTIMODAL_REGISTRY.create_processor(config)


def counter_name(processor: Any) -> str:
    """Return who counts an item's tokens here: `Qwen2_5_VLProcessor of transformers`."""
    own = type(processor.info.get_hf_processor())
    return f"{own.__name__} of {own.__module__.partition('.')[0]}"


def apply_processor(processor: Any, prompt_ids: list[int], data: Any) -> Any:
    """Run a multimodal processor on loaded media, as the server's renderer does."""
    inputs = ProcessorInputs(prompt=prompt_ids, mm_data_items=processor.info.parse_mm_data(data))
    # One thread unless OMP_NUM_THREADS is set (vllm/renderers/base.py, 0.32); more only spin.
    with set_default_torch_num_threads():
        return processor.apply(inputs, TimingContext(enabled=False))


def process_item(processor: Any, modality: str, media: Any) -> Any:
    """Process one loaded item in the prompt of vLLM's own profile."""
    text = processor.dummy_inputs.get_dummy_text({modality: 1})
    ids = processor.info.get_tokenizer().encode(text)
    return apply_processor(processor, ids, {modality: [media]})


def dummy_inputs(processor: Any, modality: str) -> Any:
    """Process one item of vLLM's dummy builder, as the profile does."""
    if VLLM_0_31.is_reached:
        return processor.get_dummy_mm_inputs({modality: 1})
    config = processor.info.ctx.model_config
    return MULTIMODAL_REGISTRY.get_dummy_mm_inputs(config, {modality: 1}, processor=processor)


def audio_rate_hz(processor: Any) -> int | None:
    """Return the rate to which vLLM resamples audio for this model; None without audio."""
    if "audio" not in processor.info.supported_mm_limits:
        return None
    resampler = getattr(processor.info.get_data_parser(), "audio_resampler", None)
    rate = getattr(resampler, "target_sr", None)
    return int(rate) if rate else None


def tiles_counter(processor: Any) -> Callable[[int, int], int] | None:
    """Return a function that counts an image's tiles plus the whole; None without resolutions."""
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


def call_defaults(processor: Any, scope: str) -> Mapping[str, Any]:
    """Return the options with which the whole processor calls its part for one modality."""
    accepted = getattr(processor.info.get_hf_processor(), "valid_processor_kwargs", None)
    defaults: Mapping[str, Any] = getattr(accepted, "_defaults", {}).get(scope, {})
    return defaults


def picture_size_kwargs(processor: Any, modality: str) -> dict[str, Any]:
    """Return `mm_kwargs` with this setting's picture size, unknown to vLLM's count, or {}."""
    own, scope = processor.info.get_hf_processor(), f"{modality}s_kwargs"
    if "size" not in call_defaults(processor, scope):
        return {}
    merged = processor.info.ctx.get_merged_mm_kwargs({})
    return {scope: {"size": own._merge_kwargs(own.valid_processor_kwargs, **merged)[scope]["size"]}}


def item_bytes(kwargs: Any) -> int:
    if VLLM_0_31.is_reached:
        from vllm.multimodal.cache.base import MultiModalCache
    else:
        from vllm.multimodal.cache import MultiModalCache
    return int(MultiModalCache.get_item_size(kwargs))


# A sound's number of features (Qwen2.5-Omni), or their mask (Qwen2-Audio, Audio Flamingo).
_LENGTHS, _MASK = "audio_feature_lengths", "feature_attention_mask"
# Sounds whose masks are in memory at once.
_BATCH_SOUNDS = 250


class _Features(dict[str, Any]):
    """Replaces processed items; it only holds how many features each has."""

    def get_data(self) -> dict[str, Any]:
        return self


def feature_frames(item: Any) -> int | None:
    data = item.get_data()
    frames = data.get(_LENGTHS, data.get(_MASK))
    return None if frames is None else int(frames.sum())


def count_resampled_samples(processor: Any, media: Any) -> int:
    """Return the samples of a loaded sound after vLLM resamples it for this model."""
    items = processor.info.parse_mm_data({"audio": [media]})
    return int(items.get_items("audio", AudioProcessorItems).get_audio_length(0))


def audio_framing(processor: Any) -> tuple[int, int] | None:
    """Return samples per frame and padded samples (0: unknown); None without an extractor."""
    extractor = getattr(processor.info.get_hf_processor(), "feature_extractor", None)
    hop = getattr(extractor, "hop_length", None)
    return (int(hop), int(getattr(extractor, "n_samples", 0))) if hop else None


def sound_embeds(
    processor: Any, samples: Sequence[int], frames: Sequence[int] = ()
) -> Iterator[int | None]:
    """Yield the embeds of sounds from the processor's prompt updates; None for a refused sound."""
    for start in range(0, len(samples), _BATCH_SOUNDS):
        part = slice(start, start + _BATCH_SOUNDS)
        update = _audio_update(processor, samples[part], frames[part])
        for index in range(len(samples[part])):
            try:
                content = update.resolve(index).content
                mask = content.is_embed and content.is_embed(content.full)
            except Exception:  # noqa: BLE001 - mmcalib then measures the sound
                yield None
            else:
                yield len(content.full) if mask is None else int(mask.sum())


def _audio_update(processor: Any, samples: Sequence[int], frames: Sequence[int]) -> Any:
    """Return the prompt update for sounds. Raises ValueError if there are several."""
    # A broadcast array has the sound's length and the memory of one sample.
    silence = [np.broadcast_to(np.float32(0), (number,)) for number in samples]
    items = MultiModalDataItems({"audio": AudioProcessorItems(silence)})
    features = _Features()
    if frames:
        features[_LENGTHS] = lengths = torch.tensor(frames)
        features[_MASK] = torch.arange(max(frames)) < lengths[:, None]
    updates = processor._get_prompt_updates(items, {}, features)
    (update,) = (u for u in updates if u.modality == "audio")
    return update


# At worst memory holds frames as loaded, as contiguous copies, resized, and cut into patches.
_COPIES_OF_FRAMES = 4

Allow = Callable[[int], None]


def blank_videos(shape: VideoShape, allow: Allow) -> Any:
    """While open, vLLM's loaders decode blank videos of this shape; before 0.29 only OpenCV's.

    The loader still decides which frames to sample. `allow` raises if it forbids that many bytes.
    """
    if VLLM_0_29.is_reached:
        return patch.multiple(vllm_video, **_decoder(shape, allow))
    return patch.multiple(vllm_video.OpenCVVideoBackendMixin, **_capture(shape, allow))


def _source(shape: VideoShape) -> Any:
    duration_s = shape.num_frames / shape.fps if shape.fps > 0 else 0.0
    return vllm_video.VideoSourceMetadata(shape.num_frames, shape.fps, duration_s)


def _frames(shape: VideoShape, sampled: list[int], allow: Allow) -> Any:
    size = (len(sampled), shape.height_px, shape.width_px, 3)
    allow(math.prod(size) * _COPIES_OF_FRAMES)
    return np.zeros(size, dtype=np.uint8)


def _decoder(shape: VideoShape, allow: Allow) -> dict[str, Any]:
    """Return a replacement for the one function that decodes with any library."""

    def decode(
        backend: str, loader: Any, data: bytes, target: Any, options: Any, *rest: Any, **kwargs: Any
    ) -> Any:
        source = loader._prepare_source(_source(shape))
        sampled = loader.compute_frames_index_to_sample(source=source, target=target, **options)
        return _frames(shape, sampled, allow), source, sampled, sampled

    return {"decode_video": decode}


def _capture(shape: VideoShape, allow: Allow) -> dict[str, Any]:
    """Return methods for the class that opens a clip and reads frames before 0.29."""
    facts = {
        cv2.CAP_PROP_FRAME_WIDTH: shape.width_px,
        cv2.CAP_PROP_FRAME_HEIGHT: shape.height_px,
        cv2.CAP_PROP_FRAME_COUNT: shape.num_frames,
        cv2.CAP_PROP_FPS: shape.fps,
    }

    def read(cls: Any, /, cap: Any, frame_idx: list[int], *rest: Any, **kwargs: Any) -> Any:
        return _frames(shape, frame_idx, allow), frame_idx

    return {
        "open_video_capture": classmethod(lambda cls, data: SimpleNamespace(get=facts.get)),
        "get_video_metadata": staticmethod(lambda cap: _source(shape)),
        "read_frames": classmethod(read),
    }


def connector(options: dict[str, dict[str, Any]], root: str) -> Any:
    """Return the server's media loader; `options` by modality, files only below `root`."""
    return MediaConnector(media_io_kwargs=options, allowed_local_media_path=root)


def video_processor_name(config: Any) -> str | None:
    """Return the class name by which vLLM picks the video loader; None without video."""
    try:
        name: str | None = get_video_processor_cls_name(config)
    except (ValueError, OSError, AttributeError):
        return None
    return name


def video_loader_name(config: Any) -> str | None:
    name = video_processor_name(config)
    loaders = vllm_video.VIDEO_LOADER_REGISTRY
    backend: str | None = loaders.get_backend_for_video_processor(name)
    return backend


def video_loader(config: Any, options: dict[str, Any]) -> Any:
    backend = vllm_video.get_video_loader_backend_for_processor(video_processor_name(config))
    if backend and "video_backend" not in options:
        options = {**options, "video_backend": backend}
    return VideoMediaIO(ImageMediaIO(image_mode="RGB"), **options)


def first_frames_loader() -> Any:
    """Return a loader that keeps the first frame of any clip, with the server's decoder."""
    return VideoMediaIO(ImageMediaIO(), num_frames=2, video_backend="opencv")


def decodes_by_torchcodec() -> bool:
    """Return True if torchcodec, vLLM's first choice for sound, works with the system's FFmpeg."""
    decoder = getattr(audio, "AudioDecoder", None)
    if decoder is None:
        return False
    silence = io.BytesIO()
    with wave.open(silence, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(3200))
    try:
        decoder(silence.getvalue())
    except (OSError, RuntimeError):
        return False
    return True


def renderer(engine_config: Any) -> Any:
    from vllm.renderers import renderer_from_config

    return renderer_from_config(engine_config)


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """How a server renders chat requests, as in `init_app_state` (api_server, 0.32)."""

    template: str | None = None
    content_format: Any = "auto"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    drops_tools: bool = False

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> PromptSettings:
        """Read the server's arguments. Raises vLLM's error for a missing template file."""
        if template := arguments.get("chat_template"):
            from vllm.renderers import hf

            # Its module differs between releases; the renderer's own import leads to it.
            template = sys.modules[hf.parse_chat_messages.__module__].load_chat_template(template)
        return cls(
            template,
            arguments.get("chat_template_content_format") or "auto",
            arguments.get("default_chat_template_kwargs") or {},
            bool(arguments.get("exclude_tools_when_tool_choice_none")),
        )

    def params(self, request: Any) -> Any:
        chat = request.build_chat_params(self.template, self.content_format)
        return chat.with_defaults(dict(self.kwargs))

    def tools(self, request: Any) -> list[dict[str, Any]] | None:
        if not request.tools or (self.drops_tools and request.tool_choice == "none"):
            return None
        return [tool.model_dump() for tool in request.tools]


def render_prompt(
    renderer: Any, messages: Sequence[Any], fields: Mapping[str, Any], prompting: PromptSettings
) -> tuple[str, list[int]]:
    """Render a chat request without items to text and uncut tokens (`preprocess_chat`, 0.32)."""
    from vllm.renderers.params import TokenizeParams

    request = _request(messages, fields)
    chat = prompting.params(request)
    chat = chat.with_defaults({"tools": prompting.tools(request), "tokenize": False})
    _, prompt = renderer.render_messages(request.messages, chat)
    for name in ("multi_modal_data", "multi_modal_uuids"):
        prompt.pop(name, None)
    plain = TokenizeParams(max_total_tokens=None, add_special_tokens=request.add_special_tokens)
    text = prompt.get("prompt", "")
    return text, list(renderer.tokenize_prompt(prompt, plain)["prompt_token_ids"])


def content_format(renderer: Any, prompting: PromptSettings) -> Any:
    """Return the template's content format. Raises ValueError if vLLM renders in code."""
    from vllm.renderers import hf

    if not isinstance(renderer, hf.HfRenderer):
        raise ValueError(f"vLLM renders its prompts in code: {type(renderer).__name__}")
    return hf.resolve_chat_template_content_format(
        prompting.template,
        None,
        prompting.content_format,
        renderer.get_tokenizer(),
        model_config=renderer.model_config,
    )


def processor_template(renderer: Any) -> str | None:
    """Return the processor's own template, which wins over the tokenizer's; None without one."""
    from vllm.renderers import hf

    tokenizer, config = renderer.get_tokenizer(), renderer.model_config
    template = hf.resolve_chat_template(tokenizer, None, None, model_config=config)
    return None if template == tokenizer.chat_template else template


def enqueue_options(
    messages: Sequence[Any], fields: Mapping[str, Any], model_config: Any, prompting: PromptSettings
) -> dict[str, Any]:
    """Return arguments of `LLM.enqueue_chat` that render, and refuse, like a server."""
    request = _request(messages, fields)
    request.build_tok_params(model_config)
    chat = prompting.params(request).chat_template_kwargs
    named = ("add_generation_prompt", "continue_final_message")
    return {
        **{name: getattr(request, name) for name in named},
        "chat_template": prompting.template,
        "chat_template_content_format": prompting.content_format,
        "tools": prompting.tools(request),
        "chat_template_kwargs": {k: v for k, v in chat.items() if k not in named and v is not None}
        or None,
    }


def _request(messages: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest.model_validate({**fields, "messages": messages})
