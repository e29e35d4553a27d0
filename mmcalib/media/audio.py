"""Audio shape by libsndfile or FFmpeg."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, cast

import soundfile

from mmcalib.domain.shapes import OPEN_LENGTH_SAMPLES, AudioShape, Encoded, Encoding
from mmcalib.media.bounded import Bounded, Medium, read_at
from mmcalib.media.failure import NO_SAMPLES, Unreadable, failures, read_errors, reason

# FFmpeg takes 16 MB, which a sound that libsndfile reads does not need.
if TYPE_CHECKING:
    from av.container import InputContainer


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


# Errors of libsndfile after which vLLM tries FFmpeg; every other one is final. `_BAD_SF_CODES`,
# vllm/multimodal/media/audio.py:60, 0.32.
_LEFT_TO_FFMPEG = frozenset((0, 1, 3, 4))

# `SoundFile.read` seeks. libsndfile says that it can seek in this one, and fails.
_UNSEEKABLE = "DWVW"

# Raw streams without a table of contents: FFmpeg guesses their duration from the bit rate.
_BIT_RATE_GUESSED = frozenset(("aac", "ac3", "eac3", "amr", "loas", "mp3"))

_LONE_PACKETS = frozenset(("aac", "amr", "caf"))

# The lowest bit rate of MPEG audio is 8 kbit/s (ISO/IEC 13818-3, table of layer III): an MP3 with
# fewer bytes for its length has a damaged Xing header.
_MPEG_BYTES_PER_S = 1000
_MPEG_FRAME_BYTES = 2048
# Frames that an encoder begins and ends with, which may count or not.
_MPEG_PADDING_SAMPLES = 4 * 1152

# Packets read at most to find a length that no header names; about six hours of AAC.
PACKET_LIMIT = 1_000_000


def audio_shape(medium: Medium) -> Encoded:
    """Samples per channel, rate and channels. Raises `Unreadable` or one of `read_errors`."""
    try:
        with open_sound(medium) as sound:
            num_samples, rate_hz, form = sound.frames, sound.samplerate, sound.format
            held = Encoding(channels=sound.channels)
            if not sound.seekable() or sound.subtype.startswith(_UNSEEKABLE):
                held = replace(held, fault="unseekable")
    except soundfile.SoundFileError as error:
        found = _by_ffmpeg(medium, refusal=reason(error))
        if getattr(error, "code", 0) in _LEFT_TO_FFMPEG:
            return found
        return replace(found, encoding=replace(found.encoding, fault="unreadable"))
    if form == "OGG" and num_samples < 1:
        return _by_ffmpeg(medium, refusal="no samples")  # which knows whether it is cut off
    if num_samples >= OPEN_LENGTH_SAMPLES or (
        form == "MP3" and _is_guessed(medium, num_samples, rate_hz)
    ):
        counted = _by_ffmpeg(medium, refusal="length in the header is wrong", trust_header=False)
        assert isinstance(counted.shape, AudioShape)
        # libsndfile reads no more than it claims. Of what it claims, the padding of the encoder
        # may be left out.
        if counted.shape.num_samples + _MPEG_PADDING_SAMPLES < num_samples:
            return Encoded(counted.shape, replace(held, claimed_samples=num_samples))
    if num_samples == 0 < rate_hz:
        raise Unreadable(NO_SAMPLES)
    return Encoded(_shape(num_samples, rate_hz), held)


def is_sound_cut_short(medium: Medium, seen: Encoded) -> bool:
    """Whether a FLAC, AAC, AMR or CAF ends in damage. Raises as `audio_shape` does."""
    held = seen.encoding
    if held.fault or (held.claimed_samples and not held.sample_format):
        return False
    if held.sample_format:
        return not _ends_whole(medium)
    assert isinstance(seen.shape, AudioShape)
    with open_sound(medium) as sound:
        if sound.format != "FLAC":
            return False
        try:
            sound.seek(seen.shape.num_samples - 1)
            return len(sound.read(1)) < 1
        except soundfile.SoundFileError:
            return True


def _ends_whole(medium: Medium) -> bool:
    """Whether the last packet can be decoded, of formats whose packets can be by themselves."""
    from mmcalib.media.container import open_container

    with open_container(medium) as container:
        stream, last = container.streams.audio[0], None
        if container.format.name not in _LONE_PACKETS:
            return True
        try:
            for packet in islice(container.demux(stream), PACKET_LIMIT):
                last = packet if packet.size else last
            if last is not None:
                last.decode()
        except read_errors():
            return False
    return True


def _is_guessed(medium: Medium | BinaryIO, num_samples: int, rate_hz: int) -> bool:
    """Whether an MP3 does not say its length in its first frame, or says what cannot be."""
    if isinstance(medium, str):
        with open(medium, "rb") as file:
            return _is_guessed(file, num_samples, rate_hz)
    size_bytes, whole = medium.seek(0, os.SEEK_END), cast("BinaryIO", medium)
    head = read_at(whole, 0, 10)
    tag_bytes = sum(byte << 7 * n for n, byte in enumerate(reversed(head[6:])))
    frame = read_at(whole, 10 + tag_bytes if head[:3] == b"ID3" else 0, _MPEG_FRAME_BYTES)
    has_table = any(mark in frame for mark in (b"Xing", b"Info", b"VBRI"))
    return not has_table or num_samples * _MPEG_BYTES_PER_S > size_bytes * rate_hz


def _by_ffmpeg(medium: Medium, refusal: str, *, trust_header: bool = True) -> Encoded:
    from mmcalib.media.container import duration_s, has_odd_tags, open_container

    with open_container(medium) as container:
        if not container.streams.audio:
            raise Unreadable(refusal)
        codec = container.streams.audio[0].codec_context
        if codec is None:
            raise Unreadable("no decoder for the audio stream")
        rate_hz = codec.sample_rate or 0
        claimed_s = duration_s(container, container.streams.audio[0])
        seconds = claimed_s
        trust_header = trust_header and container.format.name not in _BIT_RATE_GUESSED
        # No codec keeps a second in less than a byte.
        if seconds is None or not trust_header or not 0 < seconds <= (container.size or 0):
            seconds = _counted_s(container)
        shape = _shape(round(seconds * rate_hz), rate_hz)
        # A negative one is below vLLM's limit (`load_audio_pyav`, the same file).
        claimed = min(round((claimed_s or 0) * rate_hz), OPEN_LENGTH_SAMPLES)
        held = Encoding(
            channels=codec.channels,
            sample_format=codec.format.name if codec.format else "",
            claimed_samples=claimed if claimed > shape.num_samples else 0,
            fault="tags" if has_odd_tags(container) else "",
        )
        return Encoded(shape, held)


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
