"""vLLM's media loaders: real files, and videos that are blank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from vllm.multimodal import video as vllm_video
from vllm.multimodal.media import MediaConnector, audio
from vllm.multimodal.media.image import ImageMediaIO
from vllm.multimodal.media.video import VideoMediaIO
from vllm.multimodal.video import (
    VIDEO_LOADER_REGISTRY,
    get_video_loader_backend_for_processor,
)
from vllm.multimodal.video_decoders import VideoSourceMetadata
from vllm.transformers_utils.processor import get_video_processor_cls_name

from mmcalib.domain.shapes import VideoShape

# Frames as loaded, made contiguous, resized and cut into patches, all at once at the worst.
_COPIES_OF_FRAMES = 4


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
    """Whether the library is here with which vLLM decodes sound first."""
    return getattr(audio, "AudioDecoder", None) is not None


@contextmanager
def blank_videos(shape: VideoShape, allow: Callable[[int], None]) -> Iterator[None]:
    """While open, every video that vLLM's loaders decode is a blank one of this shape.

    Only the decoder is replaced: which frames are sampled stays the loader's own decision.
    `allow` raises where so many bytes may not be taken.
    """

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
        allow(math.prod(size) * _COPIES_OF_FRAMES)
        pixels = np.zeros(size, dtype=np.uint8)
        return pixels, source, frames, frames

    original = vllm_video.decode_video
    vllm_video.decode_video = decode
    try:
        yield
    finally:
        vllm_video.decode_video = original
