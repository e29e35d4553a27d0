"""Media as the server would load them: real files, and blank stand-ins of the same shape."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from PIL import Image

from mmcalib.child.host_memory import require_host_memory
from mmcalib.child.processor import MEDIA_ROOT, Processor
from mmcalib.corpus.urls import served_url
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.engine.messages import Blank, File
from mmcalib.releases import blank_video
from mmcalib.releases import media as loaders


def load(subject: Blank | File, under: Processor) -> tuple[Any, tuple[int, ...]]:
    """Load one item through vLLM's connector; returns the media and what was sampled of it.

    Raises whatever the server's loader raises: the server would refuse such a request too.
    """
    media = _file(subject, under) if isinstance(subject, File) else _blank(subject, under)
    return media, sampled_of(getattr(media, "media", media))


def _connector(under: Processor) -> Any:
    kwargs = {name: dict(values) for name, values in under.setting.media_io_kwargs.items()}
    return loaders.connector(kwargs, MEDIA_ROOT)


def _file(subject: File, under: Processor) -> Any:
    url = served_url(os.path.realpath(subject.path))
    connector = _connector(under)
    match subject.modality:
        case "image":
            return connector.fetch_image(url)
        case "audio":
            return connector.fetch_audio(url)
        case "video":
            name = loaders.video_processor_name(under.config)
            return connector.fetch_video(url, video_processor=name)


def _blank(subject: Blank, under: Processor) -> Any:
    match subject.shape:
        case ImageShape(width_px=width, height_px=height):
            return Image.new("RGB", (width, height))
        case AudioShape(num_samples=samples, sample_rate_hz=rate):
            return np.zeros(samples, dtype=np.float32), rate
        case VideoShape() as shape:
            return _blank_video(shape, under)


def _blank_video(shape: VideoShape, under: Processor) -> Any:
    """Frames of zeros, as many as the model's own loader would sample of such a video."""
    options = dict(under.setting.media_io_kwargs.get("video", {}))
    with blank_video.blank_videos(shape, require_host_memory):
        return loaders.video_loader(under.config, options).load_bytes(b"")


def sampled_of(media: Any) -> tuple[int, ...]:
    if isinstance(media, Image.Image):
        return media.size
    first, second = media
    if isinstance(second, dict):
        frames, height, width = first.shape[:3]
        return int(frames), int(width), int(height)
    return int(first.shape[-1]), int(second)
