"""What the server of a release lets in, before its processor sees an item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# Variables of vllm/envs.py: the first three are of vllm/multimodal/media/audio.py (0.32), the
# fourth of vllm/connections.py (since 0.29), the fifth of release 0.33, the last of
# vllm/multimodal/media/image.py and vllm/multimodal/video_decoders (0.32).
AUDIO_FILE = "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"
AUDIO_SECONDS = "VLLM_MAX_AUDIO_DECODE_DURATION_S"
AUDIO_BYTES = "VLLM_MAX_AUDIO_DECODE_BYTES"
DOWNLOAD = "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"
REQUEST_BYTES = "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES"
PIXELS = "VLLM_MAX_IMAGE_PIXELS"
VARIABLES = (AUDIO_FILE, AUDIO_SECONDS, AUDIO_BYTES, DOWNLOAD, REQUEST_BYTES, PIXELS)

# Pillow opens no larger picture, for vLLM neither, whatever that variable says: twice
# PIL.Image.MAX_IMAGE_PIXELS. The variable's default is the same.
MAX_PIXELS = 178_956_970


@dataclass(frozen=True, slots=True)
class Server:
    """What the server of the installed release lets in, as it was asked.

    `limits` are values of `VARIABLES`, those that the release has, and `given` the ones that were
    set in its environment; `decodes` says of each tried
    video codec whether its loader got frames out of a clip, and `lone_frames` whether out of one
    that has a single frame. `torchcodec`: it decodes sound first by that library, which counts
    channels otherwise.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    decodes: Mapping[str, bool] = field(default_factory=dict)
    lone_frames: bool = True
    torchcodec: bool = False
    label: Literal["measured"] = "measured"
