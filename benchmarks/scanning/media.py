"""The files that are read: real ones, what they lack, photographs, and large trees of links."""

from __future__ import annotations

import errno
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import soundfile
from PIL import ExifTags, Image

from mmcalib.corpus.folder import FolderSource
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.media.probe import probe

PHOTO_PX = (4000, 3000)
SMALL_PX = (640, 480)
PHOTOS = ("jpg", "png", "webp", "tif")
_IMAGES = ("jpg", "png", "webp", "gif", "tif", "bmp")
_SOUNDS = {"wav": "WAV", "flac": "FLAC", "ogg": "OGG", "mp3": "MP3"}
_SPELLINGS = {"jpeg": "jpg", "tiff": "tif", "oga": "ogg"}

# Folders of a thousand are usual.
_FOLDER_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one format; `origin` is `corpus`, `small` or `photo`."""

    modality: Modality
    format: str
    origin: str
    paths: tuple[str, ...]


def corpus_groups(folder: Path, most_files: int) -> list[Group]:
    """By what files are and how they are called, at most so many of each, spread evenly."""
    found: dict[tuple[Modality, str], list[str]] = defaultdict(list)
    for item in FolderSource(folder).items():
        shape = probe(item) if isinstance(item, Item) else item
        if isinstance(shape, Shape):
            suffix = Path(item.path).suffix[1:].lower()
            found[shape.modality, _SPELLINGS.get(suffix, suffix)].append(item.path)
    return [
        Group(modality, name, "corpus", tuple(_spread(paths, most_files)))
        for (modality, name), paths in sorted(found.items())
    ]


def made_groups(
    folder: Path, had: Sequence[Group], photos: Sequence[str] = PHOTOS
) -> Iterator[Group]:
    """Formats that `had` lacks, as small files, and photographs in the usual formats."""
    known = {(group.modality, group.format) for group in had}
    for name in _IMAGES:
        if ("image", name) not in known:
            yield Group("image", name, "small", (_image(folder, name, SMALL_PX),))
    for name in photos:
        yield Group("image", name, "photo", (_image(folder, name, PHOTO_PX),))
    for name in ("mp4", "mkv", "webm", "avi"):
        if ("video", name) not in known:
            yield Group("video", name, "small", (_video(folder, name),))
    for name in _SOUNDS:
        if ("audio", name) not in known:
            yield Group("audio", name, "small", (_sound(folder, name),))


def tree(folder: Path, files: Sequence[str], count: int) -> None:
    """Grow `folder` to `count` hard links to copies of `files`."""
    copies = folder.with_name(f"{folder.name}-copies")
    copies.mkdir(parents=True, exist_ok=True)
    sources = [_copy(path, copies, number) for number, path in enumerate(files)]
    for number in range(sum(len(names) for _, _, names in os.walk(folder)), count):
        if number % _FOLDER_ITEMS == 0:
            (folder / f"{number // _FOLDER_ITEMS:05d}").mkdir(parents=True, exist_ok=True)
        at = number % len(sources)
        link = f"{folder}/{number // _FOLDER_ITEMS:05d}/{number:08d}{Path(files[at]).suffix}"
        try:
            os.link(sources[at], link)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            sources[at] = _copy(files[at], copies, number)
            os.link(sources[at], link)


def _copy(path: str, copies: Path, number: int) -> str:
    return shutil.copyfile(path, f"{copies}/{number}")


def _spread(paths: list[str], most: int) -> list[str]:
    return [paths[at * len(paths) // most] for at in range(most)] if len(paths) > most else paths


def _picture(size_px: tuple[int, int]) -> Image.Image:
    """Soft shapes under the noise of a sensor, which is what makes a photograph's bytes."""
    chance = np.random.default_rng(7)
    soft = Image.fromarray(chance.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    pixels = np.asarray(soft.resize(size_px, Image.Resampling.BICUBIC), dtype=np.float32)
    noise = chance.normal(0, 4, pixels.shape)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def _image(folder: Path, name: str, size_px: tuple[int, int]) -> str:
    path = folder / f"{size_px[0]}.{name}"
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 1
    exif[ExifTags.Base.Model] = "camera"
    picture = _picture(size_px)
    if name in ("jpg", "webp"):
        picture.save(path, quality=90, exif=exif)
    else:
        picture.save(path)
    return str(path)


def _video(folder: Path, name: str) -> str:
    path = str(folder / f"small.{name}")
    with av.open(path, "w") as container:
        stream = container.add_stream("libvpx" if name == "webm" else "mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = *SMALL_PX, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.asarray(_picture(SMALL_PX)))
        frame = frame.reformat(format="yuv420p")
        for number in range(125):
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def _sound(folder: Path, name: str) -> str:
    path = str(folder / f"small.{name}")
    noise = np.random.default_rng(7).normal(0, 0.1, 10 * 44_100)
    soundfile.write(path, noise, 44_100, format=_SOUNDS[name])
    return path
