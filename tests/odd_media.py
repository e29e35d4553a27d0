"""Files of which the server makes something else than their shape says, made on the spot."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile
from PIL import Image

from mmcalib.processes import own_priority

MS = Fraction(1, 1000)


@own_priority()
def paced(
    path: Path,
    times_ms: Sequence[int],
    fps: int = 30,
    *,
    form: str = "matroska",
    codec: str = "libx264",
    live: bool = False,
) -> Path:
    """A clip that declares a rate and shows its frames when it likes."""
    with av.open(str(path), "w", format=form, options={"live": "1"} if live else {}) as file:
        stream = file.add_stream(codec, rate=fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = MS
        for number, time_ms in enumerate(times_ms):
            noise = np.random.default_rng(number).integers(0, 256, (48, 64, 3))
            frame = av.VideoFrame.from_ndarray(noise.astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = time_ms, MS
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def packed_sound(path: Path, seconds: float, rate_hz: int, channels: int = 2) -> Path:
    """PCM in a QuickTime file, which libsndfile does not read."""
    layout = {1: "mono", 2: "stereo"}[channels]
    with av.open(str(path), "w", format="mov") as file:
        stream = file.add_stream("pcm_s16le", rate=rate_hz, layout=layout)
        samples = np.zeros((1, round(seconds * rate_hz) * channels), np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout=layout)
        frame.sample_rate = rate_hz
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def silence(path: Path, seconds: float, rate_hz: int, channels: int = 1) -> Path:
    """By libsndfile, in the format that the name says."""
    samples = np.zeros((round(seconds * rate_hz), channels), np.int16)
    subtype = "PCM_16" if path.suffix in (".wav", ".flac", ".w64") else None
    soundfile.write(path, samples, rate_hz, subtype=subtype)
    return path


def pictures(count: int, width: int = 64, height: int = 48) -> list[Image.Image]:
    return [Image.new("RGB", (width, height), (n * 40 % 256, 90, 0)) for n in range(count)]


def gif(path: Path, frames: int) -> Path:
    first, *rest = pictures(frames)
    first.save(path, save_all=True, append_images=rest, duration=100)
    return path


def frames_url(count: int, width: int = 64, height: int = 48, header: str = "video/jpeg") -> str:
    """Frames as a client sends them."""
    parts = []
    for picture in pictures(count, width, height):
        page = io.BytesIO()
        picture.save(page, "JPEG")
        parts.append(base64.b64encode(page.getvalue()).decode())
    return f"data:{header};base64,{','.join(parts)}"


def steady(path: Path, frames: int, codec: str = "libx264", form: str = "mp4") -> Path:
    """A clip of 25 frames a second."""
    return paced(path, [n * 40 for n in range(frames)], 25, form=form, codec=codec)
