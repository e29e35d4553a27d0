"""The shape of videos from their containers: size, rotation, frames."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import BinaryIO

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from mmcalib.domain.shapes import EncodedItem, Encoding, ImageShape, Modality, VideoShape
from mmcalib.media.audio import audio_shape
from mmcalib.media.bounded import Medium, read_at
from mmcalib.media.container import (
    PACKET_LIMIT,
    FrameTime,
    count_frames_as_opencv,
    duration_s,
    irregular_times,
    open_container,
    own_duration_s,
)
from mmcalib.media.failure import Unreadable, read_errors
from mmcalib.media.headers import may_be_rotated
from mmcalib.media.image import image_shape
from mmcalib.media.sniff import FRAMES
from mmcalib.text import decode_base64

# A plain number: operators of flags take microseconds, a tenth of opening a small file.
_COVER = Disposition.attached_pic.value

# The container formats of FFmpeg that carry a display rotation.
_ROTATABLE = ("mov", "matroska")

# FFmpeg decoders that set the size even from frames that they are told to skip.
_SIZED_WHEN_SKIPPED = ("h264", "hevc", "mjpeg", "mpeg4")


def container_shape(
    medium: Medium, file: BinaryIO, declared: Modality | None = None
) -> EncodedItem:
    """Return the shape of the first video stream that is not a cover; of the audio if there is none
    or it is `declared`. `file` has the medium's bytes. Raises as `audio_shape` does.
    """
    if declared != "audio" and read_at(file, 4, 4) == b"ftyp" and not may_be_rotated(file):
        shape = _by_index(medium)
        if shape is not None:
            return shape
    with open_container(medium) as container:
        stream = video_stream(container)
        if stream is not None and not (declared == "audio" and container.streams.audio):
            return _video_shape(container, stream, _rotation(container, stream, file))
        if not container.streams.audio:
            raise Unreadable("file contains no video or audio stream")
    return audio_shape(medium, file)


def video_stream(container: InputContainer) -> VideoStream | None:
    """Return the first video stream that is not an attached picture."""
    return next((s for s in container.streams.video if not s.disposition.value & _COVER), None)


def _by_index(medium: Medium) -> EncodedItem | None:
    """Return the shape of an MP4 whose index has all but the frame size; None for others. The first
    frame has the size. FFmpeg would decode several to be sure, which takes most of the time.
    """
    with open_container(medium, whole=False) as container:
        stream = video_stream(container)
        if stream is None or not (stream.frames and stream.duration and stream.average_rate):
            return None
        codec = stream.codec_context
        if codec is None or codec.name not in _SIZED_WHEN_SKIPPED:
            return None
        codec.skip_frame, codec.thread_count = "ALL", 1
        try:
            first = next(container.demux(stream))
            codec.decode(first)
        except read_errors():
            return None
        return _video_shape(container, stream, 0) if first.size else None


def _video_shape(container: InputContainer, stream: VideoStream, rotation: int) -> EncodedItem:
    if stream.codec_context is None:
        raise Unreadable("no decoder for the video stream")
    width_px, height_px = stream.codec_context.width, stream.codec_context.height
    if width_px < 1 or height_px < 1:
        raise Unreadable(f"video of {width_px}×{height_px} pixels")
    if rotation % 180:
        width_px, height_px = height_px, width_px
    rate = stream.average_rate or stream.guessed_rate
    seconds = own_duration_s(stream) or duration_s(container, stream)
    # As OpenCV and vLLM's loader: the header's count, else duration × rate.
    fps = rate.numerator / rate.denominator if rate else None
    frames = stream.frames or (round(seconds * fps) if seconds and fps else 0)
    # A negative number, or more frames than the file has bytes: the header is damaged.
    promised, unpromised = 0, not frames
    if not 0 < frames <= (container.size or 0):
        frames, seconds = _count(container, stream)
    elif stream.frames and fps and seconds and frames > seconds * fps + 0.5:
        # With an edit list, the header's count includes hidden frames, but its seconds do not.
        frames = count_frames_as_opencv(_shown_frames(container, stream), frames, fps)
    elif fps and not stream.frames and (pace := irregular_times(container, stream, fps)):
        counted = count_frames_as_opencv(pace, frames, fps)
        # A header may be wrong by one frame, which matters if there is only one.
        if counted < frames or len(pace) == 1 < frames:
            present = min(counted, len(pace))
            promised = counted if present < counted else 0
            frames, seconds = present, present / fps
    if not frames:
        raise Unreadable("video has no frames")
    if not fps and seconds:
        fps = float(Fraction(frames / seconds).limit_denominator(1001))
    if not fps:
        raise Unreadable("video has no frame rate")
    whole_s = (container.duration or 0) / av.time_base or duration_s(container, stream) or 0
    shape = VideoShape(frames, fps, float(seconds or frames / (rate or fps)), width_px, height_px)
    encoding = Encoding(
        codec=stream.codec_context.codec.canonical_name,
        promised_frames=promised,
        unpromised=unpromised,
        transport_stream=container.format.name == "mpegts",
        # The frame count that OpenCV assumes before it reads any frame.
        lone_frame=not unpromised and (stream.frames or round(whole_s * fps)) == 1,
    )
    return EncodedItem(shape, encoding)


def _shown_frames(container: InputContainer, stream: VideoStream) -> list[FrameTime]:
    """Return the frames that an edit list shows, from the index. The first is at 0, after hidden
    ones. Key frames have the same delay from decoding as the first.
    """
    tick_s = float(stream.time_base or 0)
    container.seek(0)
    first = next(container.demux(stream))
    delay = (first.pts or 0) - (first.dts or 0)
    shown = [entry for entry in stream.index_entries if not entry.is_discard]
    times = [FrameTime((entry.timestamp + delay) * tick_s, entry.is_keyframe) for entry in shown]
    return [FrameTime(0.0, is_key=True), *times[1:]]


def _rotation(container: InputContainer, stream: VideoStream, file: BinaryIO) -> int:
    """Degrees by which vLLM's OpenCV loader turns the frames. PyAV reads them from a decoded frame,
    so decode one if the header may contain a rotation.
    """
    if not container.format.name.startswith(_ROTATABLE):
        return 0
    # FFmpeg will read on from this position.
    position = file.tell()
    may_turn = may_be_rotated(file)
    file.seek(position)
    if not may_turn:
        if not next(container.demux(stream)).size:
            raise Unreadable("no frame can be decoded")
        return 0
    stream.thread_type = "NONE"
    frame = next(container.decode(stream), None)
    if frame is None:
        raise Unreadable("no frame can be decoded")
    return int(frame.rotation)


def _count(container: InputContainer, stream: VideoStream) -> tuple[int, float | None]:
    """Count frames and seconds from the packets, without decoding."""
    if container.format.name.startswith(_ROTATABLE):  # others are at their start
        container.seek(0)
    frames, first, last = 0, None, None
    for packet in container.demux(stream):
        if frames >= PACKET_LIMIT:
            raise Unreadable(f"no frame count in the header, over {PACKET_LIMIT:,} packets")
        if packet.size:
            frames += 1
        if packet.pts is not None:
            first = packet.pts if first is None else min(first, packet.pts)
            last = packet.pts if last is None else max(last, packet.pts)
    if frames < 2 or first is None or last is None or last == first or not stream.time_base:
        return frames, None
    # The last frame lasts as long as the average of the others.
    return frames, float((last - first) * stream.time_base) * frames / (frames - 1)


# vLLM's rate for a clip without one (`load_base64`, vllm/multimodal/media/video.py, 0.32).
_FPS = 1.0

# More than a request's line, which has at most 48 MiB.
_MOST_BYTES = 64 << 20


def frames_shape(file: BinaryIO) -> EncodedItem:
    """Return a clip of encoded frames. Raises `Unreadable` if their sizes differ."""
    pictures = map(io.BytesIO, _pictures(file))
    return clip_of([image_shape(picture, any_format=True) for picture in pictures])


def clip_of(sizes: Sequence[ImageShape], *, all_frames: bool = False) -> EncodedItem:
    """Return a clip of frames, at one per second. Raises `Unreadable` if their sizes differ."""
    if any(one != other for one, other in pairwise(sizes)):
        raise Unreadable("frames differ in size, which vLLM rejects")
    frames = len(sizes)
    shape = VideoShape(frames, _FPS, frames / _FPS, sizes[0].width_px, sizes[0].height_px)
    return EncodedItem(shape, Encoding(sent_frames=True, all_frames=all_frames))


def read_frame_clip(file: BinaryIO) -> list[bytes] | None:
    """Return the images of a clip that was sent as frames; None for others. Raises `Unreadable`."""
    file.seek(0)
    return list(_pictures(file)) if file.read(len(FRAMES)) == FRAMES else None


def _pictures(file: BinaryIO) -> Iterator[bytes]:
    file.seek(len(FRAMES))
    text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise Unreadable(f"frames are larger than {_MOST_BYTES >> 20} MiB")
    for part in text.split(b","):
        try:
            yield decode_base64(part)
        except ValueError as error:
            raise Unreadable(f"base64: {error}") from error
