"""Makers of hostile files: each writes one file of a few kilobytes (or a sparse one) at `path`."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from tests.odd_media import clips, packed_sound

Make = Callable[[Path], object]
PNG = b"\x89PNG\r\n\x1a\n"
TEN_HOURS = 10 * 3600 * 16000  # samples
AU = struct.pack(">4s6I", b".snd", 28, 0xFFFFFFFF, 3, 16000, 1, 0)
# An empty tag, behind which FFmpeg looks for any format.
ID3 = b"ID3\4" + bytes(6)
SESSION = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n"
PLAYLIST = (
    b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n"
)


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png_of_zeros(path: Path, width: int, height: int) -> None:
    """A valid black RGB image; one compressed megabyte is repeated, so that none is held."""
    block = 1 << 20
    whole, rest = divmod((3 * width + 1) * height, block)
    deflate = zlib.compressobj(9, wbits=-15)
    repeated = deflate.compress(bytes(block)) + deflate.flush(zlib.Z_FULL_FLUSH)
    last = deflate.compress(bytes(rest)) + deflate.flush()
    # Adler-32 of n zeros: the low half stays 1, the high half adds it up.
    checksum = ((whole * block + rest) % 65521) << 16 | 1
    pixels = b"\x78\xda" + repeated * whole + last + struct.pack(">I", checksum)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b""))


def image(mode: str, width: int = 40, height: int = 24) -> Make:
    return lambda path: Image.new(mode, (width, height)).save(path)


def frames_of(path: Path, count: int) -> None:
    """An animation or a document, by the name's ending."""
    first, *rest = (Image.new("L", (40, 24), number % 256) for number in range(count))
    first.save(path, save_all=True, append_images=rest)


def pages_of_different_size(path: Path) -> None:
    first, *rest = (Image.new("L", (40 * n, 24 * n)) for n in (1, 9, 2))
    first.save(path, save_all=True, append_images=rest)


def bytes_of(data: bytes, size_bytes: int | None = None) -> Make:
    """These bytes, and a hole behind them to that size."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.truncate(size_bytes)

    return write


def video_without_index(path: Path) -> None:
    data = clips(path, (64, 48)).read_bytes()
    path.write_bytes(data[: data.rindex(b"moov") - 4])


def video_of_changing_size(path: Path) -> None:
    parts = [
        clips(path, size, codec="mpeg2video", form="mpegts").read_bytes()
        for size in ((64, 48), (128, 96))
    ]
    path.write_bytes(b"".join(parts))


def video_of_duration(seconds: float) -> Make:
    """A Matroska file whose header has this duration, and no count of frames."""
    return _of_duration(lambda path: clips(path, (64, 48), form="matroska"), seconds)


def sound_of_duration(seconds: float) -> Make:
    """One second of PCM in a Matroska file whose header has another duration."""
    return _of_duration(lambda path: packed_sound(path, 1, 16000, 1, "matroska"), seconds)


def _of_duration(make: Make, seconds: float) -> Make:
    def damaged(path: Path) -> None:
        make(path)
        data = bytearray(path.read_bytes())
        at = data.index(b"\x44\x89\x88") + 3
        data[at : at + 8] = struct.pack(">d", seconds * 1000)
        # The tag DURATION of the track would say the same once more.
        path.write_bytes(data.replace(b"DURATION", b"dURATION"))

    return damaged


def wav(
    rate_hz: int = 16000, channels: int = 1, data_bytes: int = 32000, claimed: int | None = None
) -> bytes:
    """The header of 16-bit PCM; `claimed` is the length it gives instead of the true one."""
    size = min(data_bytes if claimed is None else claimed, 0xFFFFFFFF - 36)
    width = 2 * channels
    form = struct.pack("<HHIIHH", 1, channels, rate_hz, rate_hz * width % 2**32, width, 16)
    return (
        b"RIFF" + struct.pack("<I", size + 36) + b"WAVEfmt " + struct.pack("<I", 16) + form
        + b"data" + struct.pack("<I", size)
    )  # fmt: skip


def silence(
    rate_hz: int = 16000, channels: int = 1, samples: int = 16000, claimed: int | None = None
) -> Make:
    data_bytes = 2 * channels * samples
    header = wav(rate_hz, channels, data_bytes, claimed)
    return bytes_of(header, len(header) + data_bytes)


def renamed(make: Make, suffix: str) -> Make:
    """The file of `make`, made under its right suffix, under a wrong name."""

    def moved(path: Path) -> None:
        right = path.with_suffix(f".{suffix}")
        make(right)
        right.rename(path)

    return moved


def cut(make: Make, start: float, end: float) -> Make:
    """The file of `make` from one share of its bytes to another."""

    def shortened(path: Path) -> None:
        make(path)
        data = path.read_bytes()
        path.write_bytes(data[int(len(data) * start) : int(len(data) * end)])

    return shortened


def noise_image(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 400, 3), np.uint8)).save(path)


def tone(path: Path) -> None:
    soundfile.write(path, np.sin(np.arange(48000) / 9) / 2, 16000)
