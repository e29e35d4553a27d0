"""Corpora of files without content, of as many distinct sizes as are asked for."""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import av
import numpy as np
import soundfile

LEAST_PX, MOST_PX = 64, 2_600
SEED = 7
_PER_FOLDER = 1_000


def make(folder: Path, items: int, shapes: int, modality: str) -> None:
    """So many files of so many sizes, in folders of a thousand."""
    chance = random.Random(SEED)
    sizes: dict[tuple[int, ...], None] = {}
    while len(sizes) < shapes:
        sizes[_size(modality, chance)] = None
    of_each = list(sizes)
    parts = [
        (modality, folder, start, [of_each[n % shapes] for n in range(start, min(items, end))])
        for start, end in itertools.pairwise(range(0, items + _PER_FOLDER, _PER_FOLDER))
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(_written, parts))


def _size(modality: str, chance: random.Random) -> tuple[int, ...]:
    match modality:
        case "image":
            return chance.randint(LEAST_PX, MOST_PX), chance.randint(LEAST_PX, MOST_PX)
        case "video":
            # Encoders want even sides.
            return chance.randint(2, 40), *(2 * chance.randint(32, 240) for _ in range(2))
        case "audio":
            return (chance.randint(1_600, 16_000 * 60),)
    raise SystemExit(f"--modalities {modality}: image, video or audio")


def _written(part: tuple[str, Path, int, list[tuple[int, ...]]]) -> None:
    modality, folder, start, sizes = part
    within = folder / f"{start // _PER_FOLDER:04d}"
    within.mkdir(parents=True)
    for number, size in enumerate(sizes, start):
        path = within / f"{number:07d}"
        match modality, size:
            case "image", (width, height):
                write_image(path, width, height)
            case "video", (frames, width, height):
                _video(path, frames, width, height)
            case "audio", (samples,):
                _audio(path, samples)


def write_image(path: Path, width: int, height: int) -> None:
    """One bit for each pixel, all white: a million whole pictures fit on a disk. Pillow writes the
    same and takes four times as long.
    """
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    row = b"\0" + b"\xff" * -(-width // 8)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * height, 1)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    path.with_suffix(".png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def _video(path: Path, frames: int, width: int, height: int) -> None:
    with av.open(str(path.with_suffix(".mp4")), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height = width, height
        grey = av.VideoFrame(width, height, "yuv420p")
        for number in range(frames):
            grey.pts = number
            container.mux(stream.encode(grey))
        container.mux(stream.encode())


def _audio(path: Path, samples: int) -> None:
    soundfile.write(path.with_suffix(".flac"), np.zeros(samples, np.int16), 16_000)
