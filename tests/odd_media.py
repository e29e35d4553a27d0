"""Files of which the server makes something else than their shape says, made on the spot."""

import base64
import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path

import av
import numpy as np
import soundfile
from PIL import Image

from mmcalib.processes import own_priority

MS = Fraction(1, 1000)


@own_priority()
def paced(
    path: Path,
    times_ms: Sequence[int],
    fps: int = 30,
    *,
    form: str = "matroska",
    codec: str = "libx264",
    options: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    live: bool = False,
    sound: bool = False,
) -> Path:
    """A clip that declares a rate and shows its frames when it likes. `options` are the codec's,
    `layout` the container's; all packets of a second's silent sound come before the frames'.
    """
    how = {"live": "1"} if live else dict(layout or {})
    with av.open(str(path), "w", format=form, options=how) as file:
        # The stream that is named first has its packets first.
        heard = file.add_stream("aac", rate=16_000, layout="mono") if sound else None
        stream = file.add_stream(codec, rate=fps, options=dict(options or {}))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.time_base = MS
        if heard is not None:
            file.mux(heard.encode(sound_frame(np.zeros((1, 16_000), np.float32), 16_000)))
            file.mux(heard.encode())
        for number, time_ms in enumerate(times_ms):
            noise = np.random.default_rng(number).integers(0, 256, (48, 64, 3))
            frame = av.VideoFrame.from_ndarray(noise.astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = time_ms, MS
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def sound_frame(
    samples: np.ndarray, rate_hz: int, form: str = "fltp", layout: str = "mono"
) -> av.AudioFrame:
    """A row of samples for each channel, or one of all where they are packed."""
    frame = av.AudioFrame.from_ndarray(samples, format=form, layout=layout)
    frame.sample_rate = rate_hz
    return frame


def clips(
    path: Path,
    *sizes: tuple[int, int],
    frames: int = 20,
    codec: str = "mpeg4",
    form: str | None = None,
    turns: Sequence[int | None] = (),
    sound_s: int = 0,
    options: Mapping[str, str] | None = None,
) -> Path:
    """A stream of noise for each of `sizes`, at 10 frames per second and turned by so many degrees,
    and a silent sound; in the container that the name asks for, unless `form` does.
    """
    with av.open(str(path), "w", format=form, options=dict(options or {})) as file:
        streams: list[av.VideoStream] = []
        for (width, height), turn in zip_longest(sizes, turns):
            stream = file.add_stream(codec, rate=Fraction(10))
            assert isinstance(stream, av.VideoStream)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            if turn is not None:
                stream.set_display_rotation(turn)
            streams.append(stream)
        heard = file.add_stream("aac", rate=16_000, layout="mono") if sound_s else None
        file.start_encoding()
        for number in range(frames):
            for stream in streams:
                shape = (stream.height, stream.width, 3)
                noise = np.random.default_rng(number).integers(0, 256, shape)
                picture = av.VideoFrame.from_ndarray(noise.astype(np.uint8), format="rgb24")
                file.mux(stream.encode(picture))
        for stream in streams:
            file.mux(stream.encode())
        if heard is not None:
            quiet = np.zeros((1, 16_000 * sound_s), np.float32)
            file.mux(heard.encode(sound_frame(quiet, 16_000)))
            file.mux(heard.encode())
    return path


def packed_sound(
    path: Path, seconds: float, rate_hz: int, channels: int = 2, form: str = "mov"
) -> Path:
    """PCM in a QuickTime file or another that libsndfile does not read."""
    layout = {1: "mono", 2: "stereo"}[channels]
    with av.open(str(path), "w", format=form) as file:
        stream = file.add_stream("pcm_s16le", rate=rate_hz, layout=layout)
        samples = np.zeros((1, round(seconds * rate_hz) * channels), np.int16)
        file.mux(stream.encode(sound_frame(samples, rate_hz, "s16", layout)))
        file.mux(stream.encode())
    return path


def silence(path: Path, seconds: float, rate_hz: int, channels: int = 1) -> Path:
    samples = np.zeros((round(seconds * rate_hz), channels), np.int16)
    subtype = "PCM_16" if path.suffix in (".wav", ".flac", ".w64") else None
    soundfile.write(path, samples, rate_hz, subtype=subtype)
    return path


def pictures(count: int, width: int = 64, height: int = 48) -> list[Image.Image]:
    return [Image.new("RGB", (width, height), (n * 40 % 256, 90, 0)) for n in range(count)]


def gif(path: Path, frames: int) -> Path:
    first, *rest = pictures(frames)
    first.save(path, save_all=True, append_images=rest, duration=100)
    return path


def frames_url(count: int, width: int = 64, height: int = 48, header: str = "video/jpeg") -> str:
    """Frames as a client sends them."""
    parts = []
    for picture in pictures(count, width, height):
        page = io.BytesIO()
        picture.save(page, "JPEG")
        parts.append(base64.b64encode(page.getvalue()).decode())
    return f"data:{header};base64,{','.join(parts)}"


def steady(path: Path, frames: int, codec: str = "libx264", form: str = "mp4") -> Path:
    return paced(path, [n * 40 for n in range(frames)], 25, form=form, codec=codec)


def hiding(path: Path, frames: int, hidden: int, rate: int = 30) -> Path:
    """A clip of one group of pictures; an edit list hides the first, as a trim without encoding."""
    times_ms = [round(n * 1000 / rate) for n in range(frames)]
    whole = paced(path.with_name(f"whole-{path.name}"), times_ms, rate, form="mp4")
    with av.open(str(whole)) as source, av.open(str(path), "w", format="mp4") as file:
        (of,) = source.streams.video
        stream = file.add_stream_from_template(of)
        for packet in source.demux(of):
            if packet.pts is None or packet.dts is None:
                continue
            early = round(hidden / rate / float(of.time_base or 1))
            packet.pts, packet.dts, packet.stream = packet.pts - early, packet.dts - early, stream
            file.mux(packet)
    return path


def titled(source: Path, path: Path, title: bytes) -> Path:
    """The first track of `source` in a Matroska of this title, which need not be UTF-8."""
    plain = bytes(byte if byte < 128 else ord("@") for byte in title)
    # A changed byte must not break a checksum.
    options = {"write_crc32": "0"}
    with (
        av.open(str(source)) as whole,
        av.open(str(path), "w", format="matroska", options=options) as file,
    ):
        file.metadata["title"] = plain.decode()
        of = whole.streams[0]
        stream = file.add_stream_from_template(of)
        for packet in whole.demux(of):
            if packet.dts is not None:
                packet.stream = stream
                file.mux(packet)
    path.write_bytes(path.read_bytes().replace(plain, title))
    return path


def heard(path: Path, codec: str, form: str, seconds: float, rate_hz: int = 16_000) -> Path:
    """Half silence and half noise by one of FFmpeg's encoders, without a header of its length."""
    options = {"write_xing": "0", "id3v2_version": "0"} if form == "mp3" else {}
    with av.open(str(path), "w", format=form, options=options) as file:
        stream = file.add_stream(codec, rate=rate_hz, layout="mono")
        assert isinstance(stream, av.AudioStream)
        if form == "mp3":
            stream.codec_context.options = {"q": "2"}
            stream.codec_context.qscale = True
            stream.codec_context.global_quality = 2 * 118
        noise = np.random.default_rng(0).standard_normal(round(seconds * rate_hz)) / 10
        noise[: len(noise) // 2] = 0
        frame = sound_frame(noise[None].astype(np.float32), rate_hz)
        fitting = av.AudioResampler(format=stream.format.name, layout="mono", rate=rate_hz)
        for part in fitting.resample(frame):
            file.mux(stream.encode(part))
        file.mux(stream.encode())
    return path


def amr(path: Path, seconds: float) -> Path:
    """Frames of 20 ms at 12.2 kbit/s behind the mark that is all of the header."""
    path.write_bytes(b"#!AMR\n" + (b"\x3c" + bytes(31)) * round(seconds * 50))
    return path


def open_flac(path: Path, seconds: float, rate_hz: int = 16_000) -> Path:
    """Leave the number of samples at 0, as an encoder that writes to a pipe."""
    data = bytearray(silence(path, seconds, rate_hz).read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)
    return path


def odd_sound(path: Path, subtype: str, seconds: float = 1) -> Path:
    """Write one of libsndfile's rarer encodings, in the format that the name says."""
    soundfile.write(path, np.zeros(round(seconds * 16_000), np.int16), 16_000, subtype=subtype)
    return path


def meeting(path: Path, seconds: int = 4) -> Path:
    """A recording with pictures and sound."""
    return clips(path, (64, 48), frames=10 * seconds, sound_s=seconds)
