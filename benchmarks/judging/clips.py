"""Clips over containers and codecs, rates and lengths."""

from __future__ import annotations

import base64
import functools
import io
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from judging.images import Make, cut, given, ramp
from mmcalib.processes import own_priority
from tests.odd_media import hiding, meeting, paced

# Presentation times in ticks of 1/100 s.
_VARIABLE = (0, 10, 20, 25, 30, 95, 100, 110, 300, 301, 302, 360)
_SLOWING = tuple(number * number // 2 for number in range(40))


@dataclass(frozen=True, slots=True)
class Clip:
    """What is written; `ticks` are times of 1/100 s in place of a steady rate."""

    codec: str = "libx264"
    container: str = "mp4"
    width: int = 96
    height: int = 64
    frames: int = 20
    fps: int = 10
    ticks: Sequence[int] = ()
    sound: bool = False
    options: dict[str, str] = field(default_factory=dict)


def write(path: Path, clip: Clip) -> None:
    """Raises what PyAV raises where the codec or the container is missing."""
    # SVT-AV1 talks unless it is told to name errors alone.
    os.environ.setdefault("SVT_LOG", "1")
    with own_priority(), av.open(str(path), "w", format=clip.container) as container:
        rate = Fraction(clip.fps)
        stream = container.add_stream(clip.codec, rate=rate)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = clip.width, clip.height
        stream.pix_fmt = {"mjpeg": "yuvj420p", "gif": "rgb8", "prores": "yuv422p10le"}.get(
            clip.codec, "yuv420p"
        )
        stream.options = {**clip.options}
        if clip.ticks:
            stream.codec_context.time_base = Fraction(1, 100)
        heard = container.add_stream("aac", rate=16_000) if clip.sound else None
        base = ramp(clip.width, clip.height, seed=clip.frames)
        pixels = np.asarray(base)
        for number in range(clip.frames):
            shifted = np.roll(pixels, number * 2, axis=1)
            frame = av.VideoFrame.from_ndarray(shifted, format="rgb24")
            if clip.ticks:
                frame.pts, frame.time_base = clip.ticks[number], Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if clip.sound:
            _hear(container, heard)


def _hear(container: av.container.OutputContainer, heard: Any) -> None:
    quiet = av.AudioFrame.from_ndarray(
        np.zeros((1, 16_000), np.float32), format="fltp", layout="mono"
    )
    quiet.sample_rate = 16_000
    container.mux(heard.encode(quiet))
    container.mux(heard.encode())


def _undeclared(clip: Clip) -> Make:
    """A Matroska file that declares no rate: its DefaultDuration becomes a Void of that length."""

    def make(path: Path) -> None:
        write(path, clip)
        data = path.read_bytes()
        start = data.index(b"\x23\xe3\x83")
        length = 3 + 1 + (data[start + 3] & 0x7F)
        void = b"\xec" + bytes([0x80 | (length - 2)]) + bytes(length - 2)
        path.write_bytes(data[:start] + void + data[start + length :])

    return make


def _heard_only(path: Path) -> None:
    with av.open(str(path), "w", format="mp4") as container:
        _hear(container, container.add_stream("aac", rate=16_000))


def _frames(count: int, width: int = 96, height: int = 64) -> Make:
    def make(path: Path) -> None:
        parts = []
        for seed in range(count):
            file = io.BytesIO()
            ramp(width, height, seed=seed).save(file, "JPEG")
            parts.append(base64.b64encode(file.getvalue()).decode())
        path.write_text(",".join(parts), "ascii")

    return make


def sidelong(write: Callable[..., Path], **how: Any) -> Make:
    """Write by one that writes a second file beside it, or knows the form by its name."""

    def make(path: Path) -> None:
        name = path.name.partition("-")[2].partition("-")[2]
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            write(Path(folder) / name, **how).rename(path)

    return make


_QUIET_265 = {"x265-params": "log-level=none"}
_CLIPS: dict[str, Clip] = {
    "video-h264.mp4": Clip(),
    "video-h264.mkv": Clip(container="matroska"),
    "video-h264.mov": Clip(container="mov"),
    "video-h264.avi": Clip(container="avi"),
    "video-h264.ts": Clip(container="mpegts"),
    "video-h264.flv": Clip(container="flv"),
    "video-h264.3gp": Clip(container="3gp"),
    "video-fragments.mp4": Clip(options={"movflags": "frag_keyframe+empty_moov"}),
    "video-hevc.mp4": Clip("libx265", options=_QUIET_265),
    "video-hevc.mkv": Clip("libx265", "matroska", options=_QUIET_265),
    "video-vp8.webm": Clip("libvpx", "webm"),
    "video-vp9.webm": Clip("libvpx-vp9", "webm"),
    "video-vp9.mkv": Clip("libvpx-vp9", "matroska"),
    "video-vp9.mp4": Clip("libvpx-vp9"),
    "video-av1.mp4": Clip("libsvtav1"),
    "video-av1.mkv": Clip("libsvtav1", "matroska"),
    "video-av1.webm": Clip("libsvtav1", "webm"),
    "video-mpeg4.mp4": Clip("mpeg4"),
    "video-mpeg4.avi": Clip("mpeg4", "avi"),
    "video-mjpeg.avi": Clip("mjpeg", "avi"),
    "video-mjpeg.mov": Clip("mjpeg", "mov"),
    "video-mpeg2.ts": Clip("mpeg2video", "mpegts", fps=25),
    "video-theora.ogv": Clip("libtheora", "ogg"),
    "video-prores.mov": Clip("prores_ks", "mov"),
    "video-ffv1.mkv": Clip("ffv1", "matroska"),
    "video-wmv2.asf": Clip("wmv2", "asf"),
    "video.gif": Clip("gif", "gif"),
    "video-1-frame.mp4": Clip(frames=1),
    "video-1-frame.mkv": Clip(container="matroska", frames=1, ticks=(0,)),
    "video-1-frame.gif": Clip("gif", "gif", frames=1),
    "video-2-frames.mp4": Clip(frames=2),
    "video-3-frames.webm": Clip("libvpx", "webm", frames=3),
    "video-5-frames.mkv": Clip(container="matroska", frames=5),
    "video-variable.mkv": Clip(container="matroska", frames=12, ticks=_VARIABLE),
    "video-variable.webm": Clip("libvpx-vp9", "webm", frames=12, ticks=_VARIABLE),
    "video-variable.mp4": Clip(frames=12, ticks=_VARIABLE),
    "video-variable-large.mkv": Clip(
        container="matroska", width=320, height=240, frames=40, ticks=_SLOWING
    ),
    "video-variable-large.webm": Clip(
        "libvpx", "webm", width=320, height=240, frames=40, ticks=_SLOWING
    ),
    "video-late.mp4": Clip(frames=12, ticks=tuple(500 + 10 * n for n in range(12))),
    "video-sound.mp4": Clip(sound=True),
    "video-sound.mkv": Clip(container="matroska", sound=True),
    "video-1-fps.mp4": Clip(fps=1, frames=30),
    "video-60-fps.mp4": Clip(fps=60, frames=120),
    "video-long.mp4": Clip(fps=2, frames=900, width=64, height=48),
    "video-16x16.mp4": Clip(width=16, height=16),
    "video-320x240.mp4": Clip(width=320, height=240, frames=40),
    "video-640x360.mp4": Clip(width=640, height=360, frames=40),
    "video-wide.mp4": Clip(width=1200, height=32, frames=8),
    "video-tall.mkv": Clip(container="matroska", width=32, height=1200, frames=8),
    "video-slim.mkv": Clip("mpeg4", "matroska", width=1640, height=8, frames=4),
    "video-1920x1080.mp4": Clip(width=1920, height=1080, frames=24, fps=8),
}


_UNDECLARED: dict[str, Clip] = {
    "video-undeclared.mkv": Clip(container="matroska"),
    "video-1-frame-undeclared.mkv": Clip(container="matroska", frames=1),
    "video-variable-undeclared.mkv": Clip(container="matroska", frames=12, ticks=_VARIABLE),
    "video-variable-undeclared.webm": Clip("libvpx", "webm", frames=12, ticks=_VARIABLE),
    "video-variable-large-undeclared.mkv": Clip(
        container="matroska", width=320, height=240, frames=40, ticks=_SLOWING
    ),
}


def _makers() -> dict[str, Make]:
    made: dict[str, Make] = {
        name: functools.partial(write, clip=clip) for name, clip in _CLIPS.items()
    }
    made |= {name: _undeclared(clip) for name, clip in _UNDECLARED.items()}
    made |= {f"video-{count}.frames": _frames(count) for count in (1, 2, 3, 4, 16, 33)}
    made["video-large.frames"] = _frames(4, 1000, 800)
    for form in ("h264.mp4", "h264.mkv", "h264.ts", "vp9.webm", "h264.avi", "fragments.mp4"):
        made[f"video-cut-{form}"] = cut(made[f"video-{form}"], 0.7)
    times_ms = range(0, 2000, 100)
    return made | {
        "video-edit-list.mp4": sidelong(hiding, frames=60, hidden=20),
        "video-meeting.mp4": meeting,
        "video-live.webm": functools.partial(
            paced, times_ms=times_ms, fps=10, form="webm", codec="libvpx", live=True
        ),
        "video-heard-only.mp4": _heard_only,
        "video-truncated.mkv": cut(
            functools.partial(write, clip=Clip(container="matroska", frames=40)), 0.5
        ),
        # The index, at the end, never came.
        "video-no-index.mp4": cut(functools.partial(write, clip=Clip(frames=40)), before=b"moov"),
        "video-empty.mp4": given(b""),
        "video-text.mp4": given(b"this is no clip\n"),
    }


MAKERS = _makers()
HEAVY = ("video-1920x1080.mp4",)
