"""FFmpeg containers opened in bounds, and the pace of a stream."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from mmcalib.media.bounded import MOST_PROBED_S, Medium
from mmcalib.media.failure import Unreadable, read_errors

# Where each read may be a request to another machine.
_REMOTE_TIMEOUT_S = 60.0

# Protocols by which a medium may make FFmpeg open another: none. A path is opened by one itself.
_NOTHING_ELSE = {"protocol_whitelist": "none"}
_FILES_ONLY = {"protocol_whitelist": "file"}

# One packet, of any stream, is the least that FFmpeg looks at.
_HEADER_ONLY = {"probesize": "32"}

# What FFmpeg opens that is no medium, but names other files and hosts.
_REFERENCES = ("sdp", "hls", "dash", "concat", "rtsp")
# Metadata that is no UTF-8 is no damage: PyAV 19 reads it so by itself, and takes no such option.
_LENIENT: Any = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
_ELSEWHERE = "a playlist that names media elsewhere"


def open_container(medium: Medium, *, whole: bool = True) -> InputContainer:
    """Open for reading, or `whole=False` only its header. Raises as `audio_shape` does."""
    file = medium if isinstance(medium, str) else None
    if not isinstance(medium, str):
        medium.seek(0)
    try:
        container: InputContainer = av.open(
            medium,
            "r",
            timeout=MOST_PROBED_S if file else _REMOTE_TIMEOUT_S,
            options=(_FILES_ONLY if file else _NOTHING_ELSE) | ({} if whole else _HEADER_ONLY),
            **_LENIENT,
        )
    except FileNotFoundError as error:
        if file and os.path.exists(file):  # it is another file that is not there
            raise Unreadable(_ELSEWHERE) from error
        raise
    if container.format.name.startswith(_REFERENCES):
        container.close()
        raise Unreadable(_ELSEWHERE)
    return container


def has_odd_tags(container: InputContainer) -> bool:
    """Whether this PyAV, which is the server's too, opens it only where tags may be replaced."""
    tags = [container.metadata, *(stream.metadata for stream in container.streams)]
    return bool(_LENIENT) and any("\ufffd" in text for one in tags for text in one.values())


# So many frames are looked at. Of the last of them, H.264 may keep as many back as it has reference
# frames at most. At the end, from the last one with which reading can begin.
_LOOKED_AT, _REORDERED = 48, 16
_MOST_AT_END = 1000
# Times are rounded to milliseconds: a fifth of a frame at 240 a second, and less on average.
_GAP_FRAMES, _MEAN_FRAMES = 1.3, 1.02

# As many as `video.PACKET_LIMIT`.
_MOST_PACKETS = 216_000

# OpenCV looks for the last frame from so many before it (CvCapture_FFMPEG::seek, 4.x).
_BACK_FRAMES = 16

# What FFmpeg and mkvtoolnix write beside each track.
_DURATION_TAG = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


class Shown(NamedTuple):
    """When a frame is shown, in seconds, and whether reading can begin with it."""

    at_s: float
    is_key: bool


def duration_s(container: InputContainer, stream: AudioStream | VideoStream) -> float | None:
    """What the header says of the stream, or else of all."""
    duration, base = stream.duration, stream.time_base
    if duration and base:
        return duration * base.numerator / base.denominator
    return container.duration / av.time_base if container.duration else None


def own_duration_s(stream: VideoStream) -> float | None:
    """What Matroska's tags say of this stream: the container may have a longer one of sound."""
    found = _DURATION_TAG.fullmatch(stream.metadata.get("DURATION", ""))
    if not found:
        return None
    hours, minutes, seconds = (float(part) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def irregular_pace(
    container: InputContainer, stream: VideoStream, fps: float
) -> Sequence[Shown] | None:
    """All frames in the order in which they are shown, where they lie further apart, here or at the
    end, than the declared rate says; None where they do not, or nobody can tell.
    """
    # Fractions take longer than the packets.
    tick_s = float(stream.time_base or 0)
    try:
        begin = _times(islice(container.demux(stream), _LOOKED_AT), tick_s)
        if len(begin) == _LOOKED_AT and _is_regular(begin[:-_REORDERED], fps):
            container.seek(container.duration or 0)
            if _is_regular(_times(islice(container.demux(stream), _MOST_AT_END), tick_s), fps):
                return None
        container.seek(0)
        shown = _times(islice(container.demux(stream), _MOST_PACKETS), tick_s)
    except read_errors():
        return None
    return shown if len(shown) < _MOST_PACKETS else None


def found_frames(shown: Sequence[Shown], promised: int, fps: float) -> int:
    """As many as vLLM finds: it goes to the last frame, and believes the number at which it then is
    (`get_video_metadata`, vllm/multimodal/video_decoders/opencv.py, 0.32).
    """
    first_s = shown[0].at_s if shown else 0.0
    target_s = max(0, promised - _BACK_FRAMES) / fps
    starts = [n for n, one in enumerate(shown) if one.is_key and one.at_s - first_s <= target_s]
    if not starts:
        return promised
    start = starts[-1]
    number = int((shown[start].at_s - first_s) * fps + 0.5)
    found = number + len(shown) - start
    return found if 0 < found < promised - 1 else promised


def _times(packets: Iterable[Packet[VideoStream]], tick_s: float) -> list[Shown]:
    return sorted(
        Shown(packet.pts * tick_s, packet.is_keyframe)
        for packet in packets
        if packet.size and packet.pts is not None
    )


def _is_regular(shown: Sequence[Shown], fps: float) -> bool:
    if len(shown) < 2:
        return True
    mean_s = (shown[-1].at_s - shown[0].at_s) / (len(shown) - 1)
    most_s = max(later.at_s - earlier.at_s for earlier, later in pairwise(shown))
    return most_s * fps <= _GAP_FRAMES and mean_s * fps <= _MEAN_FRAMES
