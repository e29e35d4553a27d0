"""Ways to learn an item's size or length: mmcalib's probe, and what others would use."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import av
import soundfile
from PIL import Image

from mmcalib.domain.items import Item
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.media.probe import probe

Read = Callable[[str], object]

MMCALIB, BARE, DECODE = "mmcalib", "bare", "decode"
IMAGESIZE, FRAME, FFPROBE = "imagesize", "bare + 1 frame", "ffprobe"
EXIFTOOL, EXIFTOOL_AT_ONCE = "exiftool", "exiftool at once"


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads files; falsy, or an exception, is no answer. `at_once` are all files in one process."""

    name: str
    read: Callable[[Sequence[str]], bool]


def readers(modality: Modality) -> list[Reader]:
    """mmcalib first. Commands that are not installed are left out."""
    own: dict[Modality, dict[str, Read]] = {
        "image": {BARE: _pillow, IMAGESIZE: _imagesize, DECODE: _pillow_decode},
        "video": {BARE: _pyav, FRAME: _pyav_frame, DECODE: _pyav_decode},
        "audio": {BARE: _soundfile, DECODE: _soundfile_decode},
    }
    found = [_each(MMCALIB, _mmcalib), *(_each(name, read) for name, read in own[modality].items())]
    if shutil.which("ffprobe"):
        found.append(_each(FFPROBE, _ffprobe))
    if shutil.which("exiftool"):
        found += [_each(EXIFTOOL, lambda path: _exiftool([path]))]
        found += [Reader(EXIFTOOL_AT_ONCE, _exiftool)]
    return found


def missing() -> list[str]:
    """Of the others, what is not installed."""
    absent = [name for name in (FFPROBE, EXIFTOOL) if not shutil.which(name)]
    return absent if find_spec(IMAGESIZE) else [IMAGESIZE, *absent]


def answers(reader: Reader, paths: Sequence[str]) -> bool:
    """Whether it has an answer for every file."""
    try:
        return reader.read(paths)
    except Exception:  # noqa: BLE001 - what a library raises is its own affair
        return False


def _each(name: str, read: Read) -> Reader:
    def loop(paths: Sequence[str]) -> bool:
        found = True
        for path in paths:
            found = bool(read(path)) and found
        return found

    return Reader(name, loop)


def _mmcalib(path: str) -> object:
    return isinstance(probe(Item(path)), Shape)


def _pillow(path: str) -> object:
    return Image.open(path).size


def _pillow_decode(path: str) -> object:
    with Image.open(path) as image:
        image.load()
        return image.size


def _imagesize(path: str) -> object:
    import imagesize

    return imagesize.get(path)[0] > 0


def _pyav(path: str) -> object:
    with av.open(path) as container:
        return _of(container)


def _pyav_frame(path: str) -> object:
    """As a reader must that wants the rotation."""
    with av.open(path) as container:
        next(container.decode(video=0))
        return _of(container)


def _of(container: av.container.InputContainer) -> list[tuple[object, ...]]:
    return [
        (
            *(stream.codec_context.width, stream.codec_context.height),
            *(stream.frames, stream.duration, stream.average_rate, container.duration),
        )
        for stream in container.streams.video
    ]


def _pyav_decode(path: str) -> object:
    with av.open(path) as container:
        return sum(1 for _ in container.decode(video=0))


def _soundfile(path: str) -> object:
    info = soundfile.info(path)
    return info.frames and info.samplerate


def _soundfile_decode(path: str) -> object:
    return len(soundfile.read(path, dtype="float32")[0])


def _ffprobe(path: str) -> object:
    return _said(["ffprobe", "-v", "error", "-of", "json", "-show_streams", "-show_format", path])


def _exiftool(paths: Sequence[str]) -> bool:
    said = _said(["exiftool", "-json", "-ImageSize", "-Duration", "-SampleRate", *paths])
    return len(said) == len(paths) and all(len(entry) > 1 for entry in said)


def _said(command: list[str]) -> Any:
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
