"""The processor under a setting, and the media it is given.

What sounds cost by their lengths alone: one is processed, the others are counted. And whether
librosa finds a sound as long as vLLM does.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from mmcalib.corpus.urls import served_url
from mmcalib.domain.knobs import Setting
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.engine.messages import Blank, File
from mmcalib.processes import free_bytes
from mmcalib.releases import processors
from mmcalib.text import GIB

# Items are loaded through vLLM's own connector, which asks for a root; which files may be read was
# decided by the parent before it named them.
MEDIA_ROOT = "/"


@dataclass(frozen=True, slots=True)
class Processor:
    """vLLM's processor under one setting, with the model config that made it."""

    config: Any
    processor: Any
    setting: Setting

    @property
    def info(self) -> Any:
        return self.processor.info


_SHARE = 0.8
_PROCESSING = (
    "processing it takes about {needed:.0f} GiB of host memory, {free:.0f} GiB are free here"
)


def require_host_memory(needed_bytes: int, words: str = _PROCESSING) -> None:
    """Raises MemoryError with both figures where so much is not free, in a container of its own."""
    free = free_bytes()
    if free is not None and needed_bytes > _SHARE * free:
        raise MemoryError(words.format(needed=needed_bytes / GIB, free=free / GIB))


def load(subject: Blank | File, under: Processor) -> tuple[Any, tuple[int, ...]]:
    """Load one item through vLLM's connector; returns the media and what was sampled of it.

    Raises whatever the server's loader raises: the server would refuse such a request too.
    """
    media = _file(subject, under) if isinstance(subject, File) else _blank(subject, under)
    return media, sampled_of(getattr(media, "media", media))


def _file(subject: File, under: Processor) -> Any:
    url = served_url(os.path.realpath(subject.path))
    kwargs = {name: dict(values) for name, values in under.setting.media_io_kwargs.items()}
    connector = processors.connector(kwargs, MEDIA_ROOT)
    match subject.modality:
        case "image":
            return connector.fetch_image(url)
        case "audio":
            return connector.fetch_audio(url)
        case "video":
            name = processors.video_processor_name(under.config)
            return connector.fetch_video(url, video_processor=name)


def _blank(subject: Blank, under: Processor) -> Any:
    match subject.shape:
        case ImageShape(width_px=width, height_px=height):
            return Image.new("RGB", (width, height))
        case AudioShape(num_samples=samples, sample_rate_hz=rate):
            return np.zeros(samples, dtype=np.float32), rate
        case VideoShape() as shape:
            # Frames of zeros, as many as the model's own loader would sample of such a video.
            options = dict(under.setting.media_io_kwargs.get("video", {}))
            with processors.blank_videos(shape, require_host_memory):
                return processors.video_loader(under.config, options).load_bytes(b"")


def sampled_of(media: Any) -> tuple[int, ...]:
    if isinstance(media, Image.Image):
        return media.size
    first, second = media
    if isinstance(second, dict):
        frames, height, width = first.shape[:3]
        return int(frames), int(width), int(height)
    return int(first.shape[-1]), int(second)


# Embeds, and frames of features.
_Count = tuple[int | None, int | None]
# Frames of features of a sound of so many samples.
_Frames = Callable[[int], int]


def count_sounds(shapes: Sequence[AudioShape], under: Processor) -> list[_Count]:
    """Of each in order, as far as vLLM's code tells. A sound is resampled to the model's rate, and
    a frame of features begins at every hop.
    """
    try:
        return _counted(shapes, under) if shapes else []
    except Exception:  # noqa: BLE001 - then they are measured
        return [(None, None)] * len(shapes)


def _counted(shapes: Sequence[AudioShape], under: Processor) -> list[_Count]:
    rate_hz = processors.audio_rate_hz(under.processor)
    if rate_hz is None:
        return [(None, None)] * len(shapes)
    samples = [-(-shape.num_samples * rate_hz // shape.sample_rate_hz) for shape in shapes]
    framing = processors.framing(under.processor)
    if framing is None:
        return [(number, None) for number in processors.sound_embeds(under.processor, samples)]
    frames = list(map(_frames_rule(max(samples), rate_hz, *framing, under), samples))
    embeds = processors.sound_embeds(under.processor, samples, frames)
    return list(zip(embeds, frames, strict=True))


def _frames_rule(most: int, rate_hz: int, hop: int, padded: int, under: Processor) -> _Frames:
    """As a sound that is a bit longer than `most` shows: whether the processor cuts it off, and
    whether it drops a last frame that is not whole of what is longer than it pads to.
    """

    def begun(samples: int) -> int:
        return -(-samples // hop)

    longest = begun(most) * hop + 1
    media = np.zeros(longest, dtype=np.float32), rate_hz
    output = processors.process_item(under.processor, "audio", media)
    shown = processors.feature_frames(output["mm_kwargs"]["audio"][0])
    if shown is None or shown == begun(longest):
        return begun
    if shown == longest // hop:
        return lambda samples: begun(samples) if samples <= padded else samples // hop
    return lambda samples: min(begun(samples), shown)


def resampled(subject: Blank | File, under: Processor) -> tuple[int, ...]:
    """Samples of a file of sound at the model's rate, by vLLM's loader and by librosa. Empty for
    other items, and without a librosa that reads it.
    """
    rate_hz = processors.audio_rate_hz(under.processor)
    if not isinstance(subject, File) or subject.modality != "audio" or rate_hz is None:
        return ()
    try:
        import librosa

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            heard, _ = librosa.load(subject.path, sr=rate_hz)
        return processors.resampled_samples(under.processor, load(subject, under)[0]), len(heard)
    except Exception:  # noqa: BLE001 - a second opinion is welcome, and not needed
        return ()
