"""What the server of this release lets in: its limits, and what its video decoder opens."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import replace
from fractions import Fraction
from typing import Any

import av
import numpy as np

from mmcalib.domain.model import VARIABLES, Server
from mmcalib.processes import own_priority
from mmcalib.releases import environment, media

# Per codec, by FFmpeg's name: an encoder of PyAV's FFmpeg, a container that holds it, and what it
# encodes.
_ENCODERS = {
    "h264": ("libx264", "mp4", "yuv420p"),
    "hevc": ("libx265", "mp4", "yuv420p"),
    "av1": ("libsvtav1", "mp4", "yuv420p"),
    "vp9": ("libvpx-vp9", "webm", "yuv420p"),
    "vp8": ("libvpx", "webm", "yuv420p"),
    "mpeg4": ("mpeg4", "mp4", "yuv420p"),
    "mjpeg": ("mjpeg", "avi", "yuvj420p"),
    "mpeg2video": ("mpeg2video", "mpegts", "yuv420p"),
    "mpeg1video": ("mpeg1video", "mpeg", "yuv420p"),
    "wmv2": ("wmv2", "asf", "yuv420p"),
    "flv1": ("flv", "flv", "yuv420p"),
    "prores": ("prores_ks", "mov", "yuv422p10le"),
    "dnxhd": ("dnxhd", "mov", "yuv422p"),
    "ffv1": ("ffv1", "matroska", "yuv420p"),
    "gif": ("gif", "gif", "rgb8"),
    "rawvideo": ("rawvideo", "avi", "yuv420p"),
}
_PROFILES = {"dnxhd": {"profile": "dnxhr_lb"}}
# The least that DNxHR is made for.
_WIDTH_PX, _HEIGHT_PX, _FRAMES, _FPS = 256, 128, 4, 25


def server(media_io_kwargs: dict[str, Any], *, videos: bool) -> Server:
    """Asks vLLM's `envs`, and without a file of the user its loader, about clips made here. What
    cannot be made here is not said to be refused.
    """
    limits = environment.whole_numbers(VARIABLES)
    found = Server(
        limits=limits,
        given=tuple(name for name in limits if name in os.environ),
        torchcodec=media.decodes_by_torchcodec(),
    )
    if not videos:
        return found
    loader = media.first_frames_loader(media_io_kwargs.get("video", {}))
    decodes: dict[str, bool] = {}
    with own_priority():
        for codec, encoding in _ENCODERS.items():
            with contextlib.suppress(av.FFmpegError, ValueError):
                decodes[codec] = _gets_frames(loader, _clip(*encoding))
        lone = _gets_frames(loader, _clip("mpeg4", "mp4", "yuv420p", frames=1))
    return replace(found, decodes=decodes, lone_frames=lone)


def _gets_frames(loader: Any, clip: bytes) -> bool:
    try:
        loaded = loader.load_bytes(clip)
    except Exception:  # noqa: BLE001 - whatever it raises, a request would end with it
        return False
    frames, _ = getattr(loaded, "media", loaded)
    return len(frames) > 0


def _clip(encoder: str, container: str, pixels: str, frames: int = _FRAMES) -> bytes:
    """Moving noise: some codecs leave out what does not change."""
    page = io.BytesIO()
    with av.open(page, "w", format=container) as file:
        stream: Any = file.add_stream(encoder, rate=Fraction(_FPS))
        stream.width, stream.height, stream.pix_fmt = _WIDTH_PX, _HEIGHT_PX, pixels
        stream.options = _PROFILES.get(encoder, {})
        stream.codec_context.thread_count = 1
        for number in range(frames):
            noise = np.random.default_rng(number).integers(0, 256, (_HEIGHT_PX, _WIDTH_PX, 3))
            frame = av.VideoFrame.from_ndarray(noise.astype(np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return page.getvalue()
