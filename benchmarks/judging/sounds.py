"""Sounds over rates, channels, lengths and containers, and around what a server decodes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile

from judging.clips import sidelong
from judging.images import Make, cut, given
from tests.odd_media import amr, heard, meeting, odd_sound, open_flac, packed_sound

# VLLM_MAX_AUDIO_CLIP_FILESIZE_MB (vllm/envs.py, 0.32).
_MOST_FILE_BYTES = 25 << 20
_WAV_HEADER_BYTES = 80
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Sound:
    """`samples` of one channel; written by libsndfile as `form`, in `subtype`."""

    samples: int
    rate_hz: int = 16_000
    channels: int = 1
    form: str = "WAV"
    subtype: str | None = None
    loudness: float = 0.3


def _s(seconds: float, rate_hz: int = 16_000) -> int:
    return round(seconds * rate_hz)


def write(path: Path, sound: Sound) -> None:
    """Block by block: some of these are larger than memory should be."""
    with soundfile.SoundFile(
        path,
        "w",
        samplerate=sound.rate_hz,
        channels=sound.channels,
        format=sound.form,
        subtype=sound.subtype,
    ) as file:
        for start in range(0, sound.samples, _BLOCK):
            count = min(_BLOCK, sound.samples - start)
            angle = np.arange(start, start + count) * (440 * 6.283 / sound.rate_hz)
            tone = sound.loudness * np.sin(angle)
            file.write(np.repeat(tone[:, None].astype(np.float32), sound.channels, axis=1))


def _by_av(path: Path, *, codec: str, form: str, rate_hz: int, seconds: float) -> None:
    with av.open(str(path), "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate_hz)
        assert isinstance(stream, av.AudioStream)
        tone = 0.3 * np.sin(np.arange(_s(seconds, rate_hz)) * (440 * 6.283 / rate_hz))
        samples = tone[None].astype(np.float32)
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate_hz, 0, Fraction(1, rate_hz)
        resampler = av.AudioResampler(
            format=stream.codec_context.format.name,
            layout="mono",
            rate=rate_hz,
            frame_size=stream.codec_context.frame_size or 1024,
        )
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(piece))
        container.mux(stream.encode())


def _behind(junk: bytes, make: Make) -> Make:
    def write_behind(path: Path) -> None:
        make(path)
        path.write_bytes(junk * 3000 + path.read_bytes())

    return write_behind


def _file_of(size_bytes: int) -> Sound:
    """A WAV of about so many bytes: stereo floats at 48 kHz are 8 B a sample."""
    samples = (size_bytes - _WAV_HEADER_BYTES) // 8
    return Sound(samples, 48_000, 2, subtype="FLOAT")


def _makers() -> dict[str, Make]:
    made: dict[str, Sound] = {"audio-1s.wav": Sound(_s(1))}
    # Of odd rates those whose kernel of resampling is small: see `_kernel_bytes` of the gate.
    for rate in (8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 96_000, 7_350, 12_345, 15_750):
        made[f"audio-{rate}.wav"] = Sound(_s(1, rate), rate)
    for channels in (2, 3, 6, 8):
        made[f"audio-{channels}-channels.wav"] = Sound(_s(1), channels=channels)
    for name, seconds in (
        *(("10ms", 0.01), ("20ms", 0.02), ("100ms", 0.1), ("500ms", 0.5), ("5s", 5.0)),
        *(("29s", 29.0), ("30s", 30.0), ("31s", 31.0), ("61s", 61.0), ("120s", 120.0)),
    ):
        made[f"audio-{name}.flac"] = Sound(_s(seconds), form="FLAC")
    for samples in (0, 1, 2, 159, 160, 161, 399, 400):
        made[f"audio-{samples}-samples.wav"] = Sound(samples)
    for subtype in ("PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "IMA_ADPCM"):
        made[f"audio-{subtype.lower()}.wav"] = Sound(_s(2), subtype=subtype)
    for form, suffix in (
        *(("FLAC", "flac"), ("OGG", "ogg"), ("MP3", "mp3"), ("W64", "w64"), ("AIFF", "aiff")),
        *(("AU", "au"), ("CAF", "caf"), ("RF64", "rf64"), ("VOC", "voc")),
    ):
        made[f"audio-2s.{suffix}"] = Sound(_s(2), form=form)
    made["audio-599s.flac"] = Sound(_s(599, 8_000), 8_000, form="FLAC")
    made["audio-601s.flac"] = Sound(_s(601, 8_000), 8_000, form="FLAC")
    made["audio-600s.flac"] = Sound(_s(600, 8_000), 8_000, form="FLAC")
    # Silence, of which files are small and decoded sounds are not.
    for seconds in (160, 190):
        quiet = Sound(_s(seconds, 48_000), 48_000, 8, "FLAC", loudness=0.0)
        made[f"audio-{seconds}s-8-channels.flac"] = quiet
    made["audio-below-25-mib.wav"] = _file_of(_MOST_FILE_BYTES - 4096)
    made["audio-above-25-mib.wav"] = _file_of(_MOST_FILE_BYTES + 8192)
    makers: dict[str, Make] = {
        name: functools.partial(write, sound=sound) for name, sound in made.items()
    }
    for name, codec, form, rate in (
        ("audio-2s.m4a", "aac", "ipod", 44_100),
        ("audio-2s.aac", "aac", "adts", 16_000),
        ("audio-2s.opus", "libopus", "ogg", 48_000),
        ("audio-2s.webm", "libopus", "webm", 48_000),
        ("audio-2s.mka", "flac", "matroska", 16_000),
        ("audio-2s.mp4", "aac", "mp4", 44_100),
        ("audio-2s.wma", "wmav2", "asf", 44_100),
        ("audio-2s.ac3", "ac3", "ac3", 44_100),
        ("audio-2s.mp2", "mp2", "mp2", 44_100),
    ):
        makers[name] = functools.partial(_by_av, codec=codec, form=form, rate_hz=rate, seconds=2.0)
    for name in ("2s.flac", "2s.mp3", "2s.ogg", "2s.aiff", "2s.m4a", "2s.aac", "2s.opus", "2s.mka"):
        makers[f"audio-cut-{name}"] = cut(makers[f"audio-{name}"], 0.6)
    for subtype in ("GSM610", "G721_32", "NMS_ADPCM_16", "ALAW"):
        makers[f"audio-{subtype.lower()}.wav"] = sidelong(odd_sound, subtype=subtype)
    for codec, form in (("aac", "adts"), ("mp3", "mp3"), ("g722", "wav"), ("pcm_mulaw", "wav")):
        makers[f"audio-half-silent-{codec}.{form}"] = functools.partial(
            heard, codec=codec, form=form, seconds=20
        )
    return makers | {
        "audio-3s.amr": functools.partial(amr, seconds=3),
        "audio-open.flac": sidelong(open_flac, seconds=3),
        "audio-meeting.mp4": meeting,
        "audio-packed.mov": functools.partial(packed_sound, seconds=1, rate_hz=16_000),
        "audio-junk-before.mp3": _behind(b"x", makers["audio-2s.mp3"]),
        "audio-zeros-before.wav": _behind(bytes(1), makers["audio-1s.wav"]),
        "audio-truncated.wav": cut(functools.partial(write, sound=Sound(_s(3))), 0.5),
        "audio-empty.wav": given(b""),
        "audio-text.wav": given(b"this is no sound\n"),
    }


MAKERS = _makers()
HEAVY = (
    *("audio-190s-8-channels.flac", "audio-160s-8-channels.flac", "audio-599s.flac"),
    *("audio-600s.flac", "audio-601s.flac", "audio-below-25-mib.wav", "audio-above-25-mib.wav"),
)
