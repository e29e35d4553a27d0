"""The shape of audio, read by libsndfile or FFmpeg."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

import soundfile

from mmcalib.domain.shapes import OPEN_LENGTH_SAMPLES, AudioShape, EncodedItem, Encoding
from mmcalib.media.bounded import LimitedFile, Medium, read_at
from mmcalib.media.failure import NO_SAMPLES, Unreadable, error_reason, media_errors, read_errors
from mmcalib.media.headers import is_video_truncated

# Importing FFmpeg takes 16 MB, which audio that libsndfile reads does not need.
if TYPE_CHECKING:
    from av.container import InputContainer


@contextmanager
def open_audio(medium: Medium) -> Iterator[soundfile.SoundFile]:
    """Open audio. Raises `Unreadable` or one of `read_errors`, also while you read from it."""
    if isinstance(medium, str):
        # Servers have no name that tells the format.
        with open(medium, "rb") as plain, soundfile.SoundFile(plain.fileno(), closefd=False) as it:
            yield it
        return
    medium.seek(0)
    file = _ErrorKeeper(medium)
    try:
        with soundfile.SoundFile(file) as sound:
            yield sound
    finally:
        if file.failure is not None:
            raise file.failure


class _ErrorKeeper:
    """A file for libsndfile that keeps exceptions, because libsndfile would print and lose them."""

    def __init__(self, medium: LimitedFile) -> None:
        self._medium, self.tell = medium, medium.tell
        self.failure: Exception | None = None

    def readinto(self, buffer: memoryview) -> int:
        if self.failure is None:
            try:
                data = self._medium.read(len(buffer))
            except media_errors() as error:
                self.failure = error
            else:
                buffer[: len(data)] = data
                return len(data)
        return 0

    # soundfile requires `read`, but calls `readinto`.
    read = readinto

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self._medium.seek(offset, whence)
        except read_errors():
            # Damaged headers seek before the start. The C library returns -1 too.
            return -1


# After these errors of libsndfile vLLM tries FFmpeg; the others are final (`_BAD_SF_CODES`,
# vllm/multimodal/media/audio.py:60, 0.32).
_FFMPEG_ERRORS = frozenset((0, 1, 3, 4))

# `SoundFile.read` seeks, which fails in this format although libsndfile reports that it works.
_UNSEEKABLE = "DWVW"

_AAC_FRAME_SAMPLES = 1024
# Raw streams without an index: FFmpeg guesses their duration from the bit rate.
_BIT_RATE_GUESSED = frozenset(("aac", "ac3", "eac3", "amr", "loas", "mp3"))

# Formats of which FFmpeg returns the first part of a truncated packet.
_PARTIAL_PACKETS = frozenset(("aac", "ac3", "amr", "asf", "caf", "eac3", "flv", "loas", "wv"))

# MPEG audio has 8 kbit/s or more (ISO/IEC 13818-3, layer III): fewer mean a damaged Xing header.
_MPEG_BYTES_PER_S = 1000
_MPEG_FRAME_BYTES = 2048
# An encoder's padding at start and end, which headers may count or not.
_MPEG_PADDING_SAMPLES = 4 * 1152

# Most packets read to find a length that is not in the header; about six hours of AAC.
PACKET_LIMIT = 1_000_000


def audio_shape(medium: Medium, file: BinaryIO) -> EncodedItem:
    """Return samples per channel, rate and encoding. Raises `Unreadable` or `read_errors`."""
    try:
        with open_audio(medium) as sound:
            num_samples, rate_hz, form = sound.frames, sound.samplerate, sound.format
            encoding = Encoding(channels=sound.channels)
            if not sound.seekable() or sound.subtype.startswith(_UNSEEKABLE):
                encoding = replace(encoding, fault="unseekable")
    except soundfile.SoundFileError as error:
        audio = _read_by_ffmpeg(medium, refusal=error_reason(error))
        if getattr(error, "code", 0) in _FFMPEG_ERRORS:
            return audio
        return replace(audio, encoding=replace(audio.encoding, fault="unreadable"))
    if form == "OGG" and num_samples < 1:
        return _read_by_ffmpeg(medium, refusal="no samples")  # tells whether it is truncated
    if num_samples >= OPEN_LENGTH_SAMPLES or (
        form == "MP3" and _is_guessed(file, num_samples, rate_hz)
    ):
        refusal = "length in the header is wrong"
        counted = _read_by_ffmpeg(medium, refusal=refusal, trust_header=False)
        assert isinstance(counted.shape, AudioShape)
        # libsndfile never reads more than the claimed length, which may include the padding.
        if counted.shape.num_samples + _MPEG_PADDING_SAMPLES < num_samples:
            return EncodedItem(counted.shape, replace(encoding, claimed_samples=num_samples))
    if num_samples == 0 < rate_hz:
        raise Unreadable(NO_SAMPLES)
    return EncodedItem(_shape(num_samples, rate_hz), encoding)


def is_audio_truncated(medium: Medium, seen: EncodedItem, file: BinaryIO) -> bool:
    """True if vLLM rejects a FLAC, or a file that FFmpeg reads, for damage at its end.
    `file` has the medium's bytes. Raises as `audio_shape` does.
    """
    encoding = seen.encoding
    if encoding.fault or (encoding.claimed_samples and not encoding.sample_format):
        return False
    if encoding.sample_format:
        return is_video_truncated(file) or not _ends_whole(medium)
    assert isinstance(seen.shape, AudioShape)
    tagged = read_at(file, 0, 3) == b"ID3"
    with open_audio(medium) as sound:
        if sound.format != "FLAC":
            return False
        try:
            if tagged:  # libsndfile cannot seek behind such tags
                return sum(map(len, sound.blocks(1 << 16))) < seen.shape.num_samples
            sound.seek(seen.shape.num_samples - 1)
            return len(sound.read(1)) < 1
        except soundfile.SoundFileError:
            return True


def _ends_whole(medium: Medium) -> bool:
    """True if the last packet decodes, or in a format whose truncated packets FFmpeg drops."""
    from mmcalib.media.container import open_container

    with open_container(medium) as container:
        stream, last = container.streams.audio[0], None
        if container.format.name not in _PARTIAL_PACKETS:
            return True
        try:
            for packet in islice(container.demux(stream), PACKET_LIMIT):
                last = packet if packet.size else last
            if last is not None:
                last.decode()
        except read_errors():
            return False
    return True


def _is_guessed(file: BinaryIO, num_samples: int, rate_hz: int) -> bool:
    """True if an MP3's first frame has no length, or an impossible one."""
    size_bytes, head = file.seek(0, os.SEEK_END), read_at(file, 0, 10)
    tag_bytes = sum(byte << 7 * n for n, byte in enumerate(reversed(head[6:])))
    frame = read_at(file, 10 + tag_bytes if head[:3] == b"ID3" else 0, _MPEG_FRAME_BYTES)
    has_table = any(mark in frame for mark in (b"Xing", b"Info", b"VBRI"))
    return not has_table or num_samples * _MPEG_BYTES_PER_S > size_bytes * rate_hz


def _read_by_ffmpeg(medium: Medium, refusal: str, *, trust_header: bool = True) -> EncodedItem:
    from mmcalib.media.container import TRIMS_ENDS, duration_s, has_odd_tags, open_container

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
        # Every codec needs at least a byte per second.
        if seconds is None or not trust_header or not 0 < seconds <= (container.size or 0):
            seconds = _count_s(container)
        samples, frame = round(seconds * rate_hz), codec.frame_size or _AAC_FRAME_SAMPLES
        is_trimmed = TRIMS_ENDS or seconds != claimed_s or "mp4" not in container.format.name
        if codec.name == "aac" and not is_trimmed:
            samples = -(-samples // frame) * frame
        shape = _shape(samples, rate_hz)
        # A negative length passes vLLM's limit (`load_audio_pyav`, the same file).
        claimed = min(round((claimed_s or 0) * rate_hz), OPEN_LENGTH_SAMPLES)
        encoding = Encoding(
            channels=codec.channels,
            sample_format=codec.format.name if codec.format else "",
            claimed_samples=claimed if claimed > shape.num_samples else 0,
            fault="tags" if has_odd_tags(container) else "",
        )
        return EncodedItem(shape, encoding)


def _shape(num_samples: int, rate_hz: int) -> AudioShape:
    if num_samples < 1 or rate_hz < 1:
        raise Unreadable(f"audio of {num_samples} samples at {rate_hz} Hz")
    return AudioShape(num_samples, rate_hz)


def _count_s(container: InputContainer) -> float:
    stream = container.streams.audio[0]
    ticks = 0
    for number, packet in enumerate(container.demux(stream)):
        if number >= PACKET_LIMIT:
            raise Unreadable(f"no length in the header, and more than {PACKET_LIMIT:,} packets")
        ticks += packet.duration or 0
    return float(ticks * stream.time_base) if stream.time_base else 0.0
