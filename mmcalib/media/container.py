"""Open FFmpeg containers within limits, and find the timing of a stream's frames."""

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

from mmcalib.media.bounded import MAX_PROBED_S, Medium
from mmcalib.media.failure import Unreadable, read_errors

# Each read may be a request to another machine.
_REMOTE_TIMEOUT_S = 60.0

# Protocols that FFmpeg may use: a medium must not make it open others, but a path needs "file".
_NOTHING_ELSE = {"protocol_whitelist": "none"}
_FILES_ONLY = {"protocol_whitelist": "file"}

# FFmpeg's minimum, which makes it probe a single packet.
_HEADER_ONLY = {"probesize": "32"}

# FFmpeg formats that contain no media but the names of other files and hosts.
_REFERENCES = ("sdp", "hls", "dash", "concat", "rtsp")
# Accepts metadata that is not UTF-8. PyAV 19 always does, and has no such option.
_LENIENT: Any = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
# FFmpeg 9 ends AAC in MP4 where the header says; before, its last frame is decoded whole.
TRIMS_ENDS = av.library_versions["libavformat"] >= (63,)
_ELSEWHERE = "playlist that refers to other files"


def open_container(medium: Medium, *, whole: bool = True) -> InputContainer:
    """Open a container, or with `whole=False` only its header. Raises as `audio_shape` does."""
    file = medium if isinstance(medium, str) else None
    if not isinstance(medium, str):
        medium.seek(0)
    try:
        container: InputContainer = av.open(
            medium,
            "r",
            timeout=MAX_PROBED_S if file else _REMOTE_TIMEOUT_S,
            container_options=(_FILES_ONLY if file else _NOTHING_ELSE)
            | ({} if whole else _HEADER_ONLY),
            **_LENIENT,
        )
    except FileNotFoundError as error:
        if file and os.path.exists(file):  # then a file that it names is missing
            raise Unreadable(_ELSEWHERE) from error
        raise
    if container.format.name.startswith(_REFERENCES):
        container.close()
        raise Unreadable(_ELSEWHERE)
    return container


def has_odd_tags(container: InputContainer) -> bool:
    """True if this PyAV, the server's, needs `_LENIENT` to open the container."""
    tags = [container.metadata, *(stream.metadata for stream in container.streams)]
    return bool(_LENIENT) and any("\ufffd" in text for one in tags for text in one.values())


# Frames checked at the start, without the last ones, because H.264 can delay a frame by its number
# of reference frames; and frames checked at the end, from the last key frame.
_START_FRAMES, _REORDERED = 48, 16
_END_FRAMES = 1000
# Times are rounded to milliseconds: up to a fifth of a frame at 240 fps, and less on average.
_GAP_FRAMES, _MEAN_FRAMES = 1.3, 1.02

# Most packets read to count frames that are not in the header; two hours at 30 fps.
PACKET_LIMIT = 216_000

# OpenCV seeks this far before the last frame to find it (CvCapture_FFMPEG::seek, 4.x).
_BACK_FRAMES = 16

# A tag that FFmpeg and mkvtoolnix write for each track.
_DURATION_TAG = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


class FrameTime(NamedTuple):
    """Presentation time of a frame in seconds, and whether it is a key frame."""

    at_s: float
    is_key: bool


def duration_s(container: InputContainer, stream: AudioStream | VideoStream) -> float | None:
    """Return the stream's duration from the header, or else the container's."""
    duration, base = stream.duration, stream.time_base
    if duration and base:
        return duration * base.numerator / base.denominator
    return container.duration / av.time_base if container.duration else None


def own_duration_s(stream: VideoStream) -> float | None:
    """Return the stream's duration from Matroska's tags; its container's audio may be longer."""
    tag = _DURATION_TAG.fullmatch(stream.metadata.get("DURATION", ""))
    if not tag:
        return None
    hours, minutes, seconds = (float(part) for part in tag.groups())
    return hours * 3600 + minutes * 60 + seconds


def irregular_times(
    container: InputContainer, stream: VideoStream, fps: float
) -> Sequence[FrameTime] | None:
    """Return all frames in presentation order if, at the start or end, they are further apart than
    the declared rate; None if they are not, or if that is unknown.
    """
    # Fractions would take longer than reading the packets.
    tick_s = float(stream.time_base or 0)
    try:
        begin = _times(islice(container.demux(stream), _START_FRAMES), tick_s)
        if len(begin) == _START_FRAMES and _is_regular(begin[:-_REORDERED], fps):
            container.seek(container.duration or 0)
            if _is_regular(_times(islice(container.demux(stream), _END_FRAMES), tick_s), fps):
                return None
        container.seek(0)
        shown = _times(islice(container.demux(stream), PACKET_LIMIT), tick_s)
    except read_errors():
        return None
    return shown if len(shown) < PACKET_LIMIT else None


def count_frames_as_opencv(shown: Sequence[FrameTime], promised: int, fps: float) -> int:
    """Return how many frames vLLM finds: it seeks the last frame, and trusts the resulting position
    (`get_video_metadata`, vllm/multimodal/video_decoders/opencv.py, 0.32).
    """
    first_s = shown[0].at_s if shown else 0.0
    target_s = max(0, promised - _BACK_FRAMES) / fps
    starts = [n for n, one in enumerate(shown) if one.is_key and one.at_s - first_s <= target_s]
    if not starts:
        return promised
    start = starts[-1]
    frames = int((shown[start].at_s - first_s) * fps + 0.5) + len(shown) - start
    return frames if 0 < frames < promised - 1 else promised


def _times(packets: Iterable[Packet[VideoStream]], tick_s: float) -> list[FrameTime]:
    return sorted(
        FrameTime(packet.pts * tick_s, packet.is_keyframe)
        for packet in packets
        if packet.size and packet.pts is not None
    )


def _is_regular(shown: Sequence[FrameTime], fps: float) -> bool:
    if len(shown) < 2:
        return True
    mean_s = (shown[-1].at_s - shown[0].at_s) / (len(shown) - 1)
    most_s = max(later.at_s - earlier.at_s for earlier, later in pairwise(shown))
    return most_s * fps <= _GAP_FRAMES and mean_s * fps <= _MEAN_FRAMES
