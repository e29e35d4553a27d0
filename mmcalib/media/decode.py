"""Decode whole items, to check them and to pass them to vLLM."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, cast
from zlib import crc32

from av.container import InputContainer
from av.video.stream import VideoStream

from mmcalib.domain.items import Item, Skipped, encode_line
from mmcalib.domain.model import MAX_PIXELS
from mmcalib.domain.shapes import (
    STREAMED,
    AudioShape,
    EncodedItem,
    Encoding,
    ImageShape,
    Modality,
    Shape,
    VideoShape,
    is_size,
    parse_size,
)
from mmcalib.media.audio import open_audio
from mmcalib.media.blank import write_blank
from mmcalib.media.bounded import Medium
from mmcalib.media.container import open_container
from mmcalib.media.failure import Unreadable, error_reason, media_errors
from mmcalib.media.image import load_picture
from mmcalib.media.probe import examine, limited, probe
from mmcalib.media.video import read_frame_clip, video_stream
from mmcalib.storage.access import local_copy, open_item
from mmcalib.text import one_line

# A decoded stream may be this much shorter than in its header: priming samples, edit lists.
_TOLERANCE_S = 0.5
# Where to seek before the end: without an index (MPEG-TS) a seek may pass the last key frame.
_STEPS_BACK_S = (0, 10, 60)
_BLOCK_SAMPLES = 1 << 16

# If all channels together have more samples, only the end is decoded: two hours at 16 kHz, mono.
_WHOLE_SAMPLES = 1 << 27


def decode_check(item: Item, modality: Modality) -> str | None:
    """Return why the item does not decode to its end, or None. Raises UsageError as `probe` does.

    Decodes only the first and last frames of videos, and the end of very long audio.
    """
    seen = examine(replace(item, declared=modality))
    if isinstance(seen, Skipped):
        return seen.reason
    try:
        with open_item(item) as opened:
            medium = opened.path or limited(item, opened, whole=True)
            _decode(medium, opened.file if opened.path else cast("BinaryIO", medium), seen)
    except media_errors() as error:
        return error_reason(error)
    return None


# A file of each modality to write and read back.
_SAMPLES: Mapping[Modality, Shape] = {
    "image": ImageShape(64, 48),
    "video": VideoShape(4, 2.0, 2.0, 64, 48),
    "audio": AudioShape(800, 16_000),
}


def check_library(modality: Modality, folder: Path) -> str:
    """Return why mmcalib cannot read a file of this modality that it writes; empty if it can."""
    shape = _SAMPLES[modality]
    try:
        item = Item(str(write_blank(shape, 0, folder)))
        result = probe(item)
        if isinstance(result, Skipped):
            return result.reason
        if str(result) != str(shape):
            return f"wrote {shape} and read {result}"
        return decode_check(item, modality) or ""
    except Exception as error:  # noqa: BLE001 - any error is the result of the test
        return one_line(f"{type(error).__name__}: {error}")


def _decode(medium: Medium, file: BinaryIO, seen: EncodedItem) -> None:
    """Decode a medium; `file` has its bytes."""
    shape = seen.shape
    match shape:
        case ImageShape():
            load_picture(file)
        case VideoShape():
            # The server's limits decide about larger frames; do not decode them here.
            if shape.width_px * shape.height_px <= MAX_PIXELS:
                try:
                    _decode_video(medium, file)
                except media_errors() as error:
                    if not seen.encoding.transport_stream:
                        raise
                    raise Unreadable(f"{STREAMED}; remux it to MP4") from error
        case AudioShape() if seen.encoding.fault != "unseekable":
            _decode_audio(medium, shape, seen.encoding)


def _decode_video(medium: Medium, file: BinaryIO) -> None:
    if frames := read_frame_clip(file):
        for picture in frames:
            load_picture(io.BytesIO(picture))
        return
    with open_container(medium) as container:
        if (stream := video_stream(container)) is None:
            raise Unreadable("no video stream")
        if next(container.decode(stream), None) is None:
            raise Unreadable("no frame can be decoded")
        if not stream.duration or not stream.time_base:
            return
        header_s = float(stream.duration * stream.time_base)
        for back_s in _STEPS_BACK_S:
            try:
                _check_length(_end_s(container, stream, max(0, header_s - back_s)), header_s)
                return
            except media_errors():
                if back_s == _STEPS_BACK_S[-1]:
                    raise


def _end_s(container: InputContainer, stream: VideoStream, from_s: float) -> float:
    """Return the end in seconds of the last frame that decodes from `from_s` on."""
    base, start = stream.time_base or Fraction(1), stream.start_time or 0
    container.seek(start + int(from_s / base), stream=stream)
    ends = [f.pts + (f.duration or 0) for f in container.decode(stream) if f.pts is not None]
    return float((max(ends, default=start) - start) * base)


def _decode_audio(medium: Medium, shape: AudioShape, encoding: Encoding) -> None:
    if encoding.sample_format or encoding.claimed_samples or encoding.fault:
        _decode_audio_by_ffmpeg(medium, shape, encoding)
        return
    with open_audio(medium) as sound:
        start = _start_sample(shape.num_samples, sound.channels)
        sound.seek(start)
        # libsndfile pads with silence up to the length in a damaged MP3 header.
        blocks = sound.blocks(
            blocksize=max(1, _BLOCK_SAMPLES // sound.channels),
            frames=shape.num_samples - start,
            dtype="int16",
        )
        read = start + sum(len(block) for block in blocks)
        _check_length(read / shape.sample_rate_hz, shape.duration_s)


def _decode_audio_by_ffmpeg(medium: Medium, shape: AudioShape, encoding: Encoding) -> None:
    with open_container(medium) as container:
        if not container.streams.audio:
            raise Unreadable("no audio stream")
        stream = container.streams.audio[0]
        start_s = _start_sample(shape.num_samples, stream.channels) / shape.sample_rate_hz
        if start_s and stream.time_base:
            container.seek(int(start_s / stream.time_base), stream=stream)
        read_s = sum(frame.samples / frame.sample_rate for frame in container.decode(stream))
        if stream.duration and stream.time_base and not encoding.claimed_samples:
            _check_length(start_s + read_s, float(stream.duration * stream.time_base))


def _start_sample(num_samples: int, channels: int) -> int:
    """Return the sample from which to decode: 0, or one near the end of very long audio."""
    return 0 if num_samples * channels <= _WHOLE_SAMPLES else max(0, num_samples - _BLOCK_SAMPLES)


def _check_length(decoded_s: float, header_s: float) -> None:
    if decoded_s < header_s - _TOLERANCE_S:
        raise Unreadable(f"truncated: only {decoded_s:.2f} s of {header_s:.2f} s decode")


def decode_for_vllm(item: Item, folder: str, known: str) -> str:
    """Return the path of the item's file, or of a copy in `folder`; an encoded `Skipped` if it does
    not decode. Items `known` to decode are not checked again. Raises OutputError.
    """
    try:
        if is_size(item.path):
            number = crc32(item.path.encode()) % (1 << 16)
            return str(write_blank(parse_size(item.path).shape, number, Path(folder)))
        path = local_copy(item.path, Path(folder))
    except media_errors() as error:
        return encode_line(Skipped(item.path, error_reason(error)))
    if known:
        return path
    why = decode_check(Item(path, item.declared), item.declared or "image")
    return path if why is None else encode_line(Skipped(item.path, why))
