"""Which files a server refuses before its processor sees them, and what would have it take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmcalib.domain.encoding import Encoded
from mmcalib.domain.server import (
    AUDIO_BYTES,
    AUDIO_FILE,
    AUDIO_SECONDS,
    DOWNLOAD,
    MAX_PIXELS,
    PIXELS,
    REQUEST_BYTES,
    Server,
)
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.sizes import MIB

# Bytes that FFmpeg's sample formats take per channel; libsndfile decodes to float32.
_SAMPLE_BYTES = {"u8": 1, "s16": 2, "s32": 4, "flt": 4, "dbl": 8, "s64": 8}
_FLOAT_BYTES = 4

# What every FFmpeg since 2003 decodes, and all players.
_ANY_DECODER = "H.264"


@dataclass(frozen=True, slots=True)
class ServerRefusal:
    """Why a server refuses a file. At least `value` for `variable` in its environment admits it;
    empty where no setting does.
    """

    reason: str
    remedy: str
    variable: str = ""
    value: int = 0


def server_refuses(file: Encoded, server: Server) -> ServerRefusal | None:
    """The first reason for which this server refuses the file, None where none is known."""
    match file.shape:
        case AudioShape() as shape:
            return _sound(file, shape, server)
        case ImageShape() as shape:
            if found := _picture(shape, "a picture", server):
                return found
        case VideoShape() as shape:
            if file.encoding.sent_frames:
                found = _picture(shape, "frames", server)
            else:
                found = _pixels(shape, "frames", server)
            if found:
                return found
            if file.encoding.lone_frame and not server.lone_frames:
                return ServerRefusal(
                    "a clip of one frame: the server's decoder gets none out of it",
                    "send the frame as an image",
                )
            codec = file.encoding.codec
            if not server.decodes.get(codec, True):
                return ServerRefusal(
                    f"{codec}: the server's decoder gets no frame out of this codec",
                    f"convert it to {_ANY_DECODER}",
                )
    return _download(file, server)


def request_refused(decoded: Sequence[int], server: Server) -> ServerRefusal | None:
    """The same for the items of one request, by the bytes that each has decoded; of releases that
    bound their sum (0.33).
    """
    most, total = server.limits.get(REQUEST_BYTES, 0), sum(decoded)
    if 0 < most < total:
        said = f"{total / MIB:.0f} MiB of decoded media in one request"
        return _above(REQUEST_BYTES, total, said, f"{most / MIB:.0f} MiB")
    return None


def needed(file: Encoded, server: Server) -> dict[str, int]:
    """The least values of the server's environment with which it takes the file; empty where it
    takes it anyhow, or never.
    """
    limits: dict[str, int] = {}
    while refusal := server_refuses(file, replace(server, limits={**server.limits, **limits})):
        if not refusal.variable:
            return {}
        limits[refusal.variable] = refusal.value
    return limits


def _picture(shape: ImageShape | VideoShape, what: str, server: Server) -> ServerRefusal | None:
    """Of what Pillow opens for the server."""
    pixels = shape.width_px * shape.height_px
    if pixels > MAX_PIXELS:
        why = f"{what} of {pixels:,} pixels, the server's Pillow opens up to {MAX_PIXELS:,}"
        return ServerRefusal(why, "")
    return _pixels(shape, what, server)


def _pixels(shape: ImageShape | VideoShape, what: str, server: Server) -> ServerRefusal | None:
    """Zero and less: no limit. One that is not known, of an earlier calibration: vLLM's default."""
    most, pixels = server.limits.get(PIXELS, MAX_PIXELS), shape.width_px * shape.height_px
    if 0 < most < pixels:
        return _above(PIXELS, pixels, f"{what} of {pixels:,} pixels", f"{most:,}")
    return None


def _sound(file: Encoded, shape: AudioShape, server: Server) -> ServerRefusal | None:
    held = file.encoding
    most = server.limits.get(AUDIO_FILE)
    if most is not None and held.file_mib > most:
        return _above(AUDIO_FILE, held.file_mib, f"a file of {held.file_mib} MiB", f"{most} MiB")
    if found := _download(file, server):
        return found
    seconds = shape.duration_s * _counted_twice(file, server)
    most = server.limits.get(AUDIO_SECONDS)
    if most is not None and seconds > most:
        said = f"{shape.duration_s:.1f} s"
        if seconds > shape.duration_s:
            said += f", and packed samples of {held.channels} channels count each"
        return _above(AUDIO_SECONDS, math.ceil(seconds), said, f"{most} s")
    most = server.limits.get(AUDIO_BYTES)
    decoded = decoded_bytes(file, server)
    if most is not None and decoded > most:
        said = (
            f"{held.channels} channels of {shape.duration_s:.1f} s, {decoded / MIB:.0f} MiB decoded"
        )
        return _above(AUDIO_BYTES, decoded, said, f"{most / MIB:.0f} MiB")
    return None


def decoded_bytes(file: Encoded, server: Server) -> int:
    """Of a clip of sound, as the server decodes it."""
    assert isinstance(file.shape, AudioShape)
    held = file.encoding
    each = _SAMPLE_BYTES.get(held.sample_format.removesuffix("p"), _FLOAT_BYTES)
    if server.torchcodec or not held.sample_format:
        each = _FLOAT_BYTES
    return file.shape.num_samples * max(1, held.channels) * each


def _counted_twice(file: Encoded, server: Server) -> int:
    """How often vLLM counts a sample of sound that PyAV decodes: once per channel, where these come
    one after another (`load_audio_pyav`, vllm/multimodal/media/audio.py, 0.32).
    """
    form = file.encoding.sample_format
    packed = form and not form.endswith("p") and not server.torchcodec
    return max(1, file.encoding.channels) if packed else 1


def _download(file: Encoded, server: Server) -> ServerRefusal | None:
    most, size = server.limits.get(DOWNLOAD, 0), file.encoding.file_mib
    # Zero and less: no limit.
    if file.encoding.fetched and 0 < most < size:
        return _above(DOWNLOAD, size, f"a download of {size} MiB", f"{most} MiB")
    return None


def _above(variable: str, value: int, said: str, most: str) -> ServerRefusal:
    reason = f"{said}, the server takes up to {most} ({variable})"
    return ServerRefusal(reason, f"{variable}={value} for the server", variable, value)
