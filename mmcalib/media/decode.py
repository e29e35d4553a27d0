"""Full decoding of one item, to cross-check a sample of what the headers said."""

from __future__ import annotations

import warnings

import av
import soundfile

from mmcalib.census.shapes import AudioShape, ImageShape, Modality, VideoShape
from mmcalib.corpus.item import Item, Skipped
from mmcalib.media.failure import READ_ERRORS, Unreadable, reason
from mmcalib.media.image import open_image
from mmcalib.media.probe import probe
from mmcalib.media.video import video_stream

# Decoded streams may end this much before the header says: priming samples, edit lists.
_TOLERANCE_S = 0.5
_BLOCK_SAMPLES = 1 << 16


def decode_check(path: str, modality: Modality) -> str | None:
    """Why the item cannot be decoded to its end, or None when it can.

    Images and audio are decoded whole, videos at their first and last frames.
    """
    shape = probe(Item(path, modality))
    if isinstance(shape, Skipped):
        return shape.reason
    try:
        match shape:
            case ImageShape():
                _image(path)
            case VideoShape():
                _video(path)
            case AudioShape():
                _audio(path, shape)
    except Unreadable as error:
        return str(error)
    except READ_ERRORS as error:
        return reason(error)
    return None


def _image(path: str) -> None:
    with open(path, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        open_image(file).load()


def _video(path: str) -> None:
    with av.open(path, metadata_errors="replace") as container:
        stream = video_stream(container)
        if stream is None:
            raise Unreadable("no video stream")
        if next(container.decode(stream), None) is None:
            raise Unreadable("no frame can be decoded")
        if not stream.duration or not stream.time_base:
            return
        start = stream.start_time or 0
        container.seek(start + stream.duration, stream=stream)
        ends = [
            frame.pts + (frame.duration or 0)
            for frame in container.decode(stream)
            if frame.pts is not None
        ]
        end_s = float((max(ends, default=start) - start) * stream.time_base)
        _same_length(end_s, float(stream.duration * stream.time_base))


def _audio(path: str, shape: AudioShape) -> None:
    try:
        sound = soundfile.SoundFile(path)
    except soundfile.SoundFileError:
        _audio_by_ffmpeg(path)
        return
    with sound:
        # libsndfile pads with silence up to whatever length a damaged MP3 header claims.
        blocks = sound.blocks(blocksize=_BLOCK_SAMPLES, frames=shape.num_samples)
        read_s = sum(len(block) for block in blocks) / shape.sample_rate_hz
        _same_length(read_s, shape.duration_s)


def _audio_by_ffmpeg(path: str) -> None:
    with av.open(path, metadata_errors="replace") as container:
        if not container.streams.audio:
            raise Unreadable("no audio stream")
        stream = container.streams.audio[0]
        read_s = sum(frame.samples / frame.sample_rate for frame in container.decode(stream))
        if stream.duration and stream.time_base:
            _same_length(read_s, float(stream.duration * stream.time_base))


def _same_length(decoded_s: float, header_s: float) -> None:
    if decoded_s < header_s - _TOLERANCE_S:
        raise Unreadable(f"truncated: decoded {decoded_s:.2f} s of {header_s:.2f} s")
