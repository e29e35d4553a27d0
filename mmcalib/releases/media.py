"""vLLM's media loaders, as a server has them."""

from __future__ import annotations

import io
import wave
from typing import Any

from vllm.multimodal.media import MediaConnector, audio
from vllm.multimodal.media.image import ImageMediaIO
from vllm.multimodal.media.video import VideoMediaIO
from vllm.multimodal.video import (
    VIDEO_LOADER_REGISTRY,
    get_video_loader_backend_for_processor,
)
from vllm.transformers_utils.processor import get_video_processor_cls_name


def connector(options: dict[str, dict[str, Any]], root: str) -> Any:
    """What a server loads media with; `options` by modality, files below `root`."""
    return MediaConnector(media_io_kwargs=options, allowed_local_media_path=root)


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


def video_loader(config: Any, options: dict[str, Any]) -> Any:
    """The one of this model, of frames in RGB."""
    backend = get_video_loader_backend_for_processor(video_processor_name(config))
    if backend and "video_backend" not in options:
        options = {**options, "video_backend": backend}
    return VideoMediaIO(ImageMediaIO(image_mode="RGB"), **options)


def first_frames_loader(options: dict[str, Any]) -> Any:
    """The one that takes every clip's first frame, whatever its rate; with the server's decoder."""
    backend = {name: value for name, value in options.items() if name == "backend"}
    return VideoMediaIO(ImageMediaIO(), num_frames=2, video_backend="opencv", **backend)


def decodes_by_torchcodec() -> bool:
    """Whether the library is here with which vLLM decodes sound first, and finds an FFmpeg of the
    system: it looks for one when it is first used.
    """
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
