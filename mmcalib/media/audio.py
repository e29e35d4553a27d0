"""Audio shape by libsndfile or FFmpeg."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import soundfile
from av.container import InputContainer

from mmcalib.domain.shapes import AudioShape, Encoded, Encoding
from mmcalib.media.bounded import Bounded, Medium
from mmcalib.media.container import duration_s, open_container
from mmcalib.media.failure import Unreadable, failures, read_errors, reason


@contextmanager
def open_sound(medium: Medium) -> Iterator[soundfile.SoundFile]:
    """Open for reading. Raises `Unreadable` or one of `read_errors`, also from within."""
    if isinstance(medium, str):
        with soundfile.SoundFile(medium) as sound:
            yield sound
        return
    medium.seek(0)
    quiet = _Quiet(medium)
    try:
        with soundfile.SoundFile(quiet) as sound:
            yield sound
    finally:
        if quiet.failure is not None:
            raise quiet.failure


class _Quiet:
    """What libsndfile calls back: an exception would be printed there and lost, so it is kept."""

    def __init__(self, medium: Bounded) -> None:
        self._medium = medium
        self.failure: Exception | None = None

    def readinto(self, buffer: memoryview) -> int:
        if self.failure is None:
            try:
                data = self._medium.read(len(buffer))
            except failures() as error:
                self.failure = error
            else:
                buffer[: len(data)] = data
                return len(data)
        return 0

    # Its presence is asked for, the other is called.
    read = readinto

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self._medium.seek(offset, whence)
        except read_errors():
            # Damaged headers lead before the start; of a file on disk the C library says the same.
            return -1

    def tell(self) -> int:
        return self._medium.tell()


# libsndfile says SF_COUNT_MAX (2**63 - 1) where a header leaves the length open.
_OPEN_LENGTH_SAMPLES = 1 << 62

# Raw streams without a table of contents: FFmpeg guesses their duration from the bit rate.
_BIT_RATE_GUESSED = frozenset(("aac", "ac3", "eac3", "amr", "loas", "mp3"))

# The lowest bit rate of MPEG audio is 8 kbit/s (ISO/IEC 13818-3, table of layer III): an MP3 with
# fewer bytes for its length has a damaged Xing header.
_MPEG_BYTES_PER_S = 1000

# Packets read at most to find a length that no header names; about six hours of AAC.
PACKET_LIMIT = 1_000_000


def audio_shape(medium: Medium) -> Encoded:
    """Samples per channel and rate of the first audio stream, and its channels.

    Raises `Unreadable` or one of `read_errors`.
    """
    try:
        with open_sound(medium) as sound:
            num_samples, rate_hz, form = sound.frames, sound.samplerate, sound.format
            channels = sound.channels
    except soundfile.SoundFileError as error:
        return _by_ffmpeg(medium, refusal=reason(error))
    if num_samples >= _OPEN_LENGTH_SAMPLES:
        return _by_ffmpeg(medium, refusal="length not in the header")
    if form == "OGG" and num_samples < 1:
        return _by_ffmpeg(medium, refusal="no samples")  # which knows whether it is cut off
    size_bytes = os.path.getsize(medium) if isinstance(medium, str) else medium.size_bytes
    if form == "MP3" and num_samples * _MPEG_BYTES_PER_S > size_bytes * rate_hz:
        return _by_ffmpeg(medium, refusal="length in the header is wrong", trust_header=False)
    return Encoded(_shape(num_samples, rate_hz), Encoding(channels=channels))


def _by_ffmpeg(medium: Medium, refusal: str, *, trust_header: bool = True) -> Encoded:
    with open_container(medium) as container:
        if not container.streams.audio:
            raise Unreadable(refusal)
        codec = container.streams.audio[0].codec_context
        if codec is None:
            raise Unreadable("no decoder for the audio stream")
        rate_hz = codec.sample_rate or 0
        trust_header = trust_header and container.format.name not in _BIT_RATE_GUESSED
        seconds = duration_s(container, container.streams.audio[0]) if trust_header else None
        # No codec keeps a second in less than a byte.
        if seconds is None or not 0 < seconds <= (container.size or 0):
            seconds = _counted_s(container)
        held = Encoding(
            channels=codec.channels, sample_format=codec.format.name if codec.format else ""
        )
        return Encoded(_shape(round(seconds * rate_hz), rate_hz), held)


def _shape(num_samples: int, rate_hz: int) -> AudioShape:
    if num_samples < 1 or rate_hz < 1:
        raise Unreadable(f"audio of {num_samples} samples at {rate_hz} Hz")
    return AudioShape(num_samples, rate_hz)


def _counted_s(container: InputContainer) -> float:
    stream = container.streams.audio[0]
    ticks = 0
    for number, packet in enumerate(container.demux(stream)):
        if number >= PACKET_LIMIT:
            raise Unreadable(f"length not in the header and over {PACKET_LIMIT:,} packets")
        ticks += packet.duration or 0
    return float(ticks * stream.time_base) if stream.time_base else 0.0
