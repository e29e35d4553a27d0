"""Shapes of images, videos and audio, and how a file encodes them.

A shape is what decides an item's cost: pixels, frames and time, or samples. One that is given as
`size:4032x3024` or `size:1920x1080,30fps,12s` is an item without a file; a `#tag` at the end names
its content: items of one size and tag are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from numbers import Real
from typing import Any, ClassVar, Final, Literal, get_args

# libsndfile reports SF_COUNT_MAX (2**63 - 1) if a header leaves the length open.
OPEN_LENGTH_SAMPLES = 1 << 62

Modality = Literal["image", "video", "audio"]
MODALITIES: tuple[Modality, ...] = ("image", "video", "audio")


@dataclass(frozen=True, slots=True, order=True)
class ImageShape:
    """Width and height in pixels as a viewer shows them, EXIF rotation applied."""

    modality: ClassVar[Literal["image"]] = "image"
    width_px: int
    height_px: int

    def __str__(self) -> str:
        return f"{self.width_px}×{self.height_px}"


@dataclass(frozen=True, slots=True, order=True)
class VideoShape:
    """The video stream as stored: all its frames, frames per second, seconds, pixels."""

    modality: ClassVar[Literal["video"]] = "video"
    num_frames: int
    fps: float
    duration_s: float
    width_px: int
    height_px: int

    def __str__(self) -> str:
        frames = f"{self.num_frames} frames, {self.duration_s:.1f} s"
        return f"{self.width_px}×{self.height_px}, {frames}"


@dataclass(frozen=True, slots=True, order=True)
class AudioShape:
    """Samples per channel at the file's own rate."""

    modality: ClassVar[Literal["audio"]] = "audio"
    num_samples: int
    sample_rate_hz: int

    @property
    def duration_s(self) -> float:
        return self.num_samples / self.sample_rate_hz

    def __str__(self) -> str:
        return f"{self.duration_s:.2f} s at {self.sample_rate_hz / 1000:g} kHz"


Shape = ImageShape | VideoShape | AudioShape

SHAPES: Mapping[Modality, type[Shape]] = {
    "image": ImageShape,
    "video": VideoShape,
    "audio": AudioShape,
}


def scaled(shape: Shape, by: float) -> Shape:
    """Return a copy with scaled sides; a sound, with a scaled length."""
    if isinstance(shape, AudioShape):
        return replace(shape, num_samples=max(1, round(shape.num_samples * by)))
    width, height = (max(1, round(side * by)) for side in (shape.width_px, shape.height_px))
    return replace(shape, width_px=width, height_px=height)


def weight(shape: Shape) -> float:
    """Amount to decode: pixels, frames × pixels, or samples."""
    match shape:
        case VideoShape():
            return shape.num_frames * shape.width_px * shape.height_px
        case AudioShape():
            return shape.num_samples
        case ImageShape():
            return shape.width_px * shape.height_px


def invalid_reason(shape: Shape) -> str:
    """Return why no item can have this shape, or "". Not in the constructor: too slow."""
    for name in (field.name for field in fields(shape)):
        value = getattr(shape, name)
        if not isinstance(value, Real) or value <= 0 or not value < math.inf:
            return f"{name} of {value!r}: sizes are numbers above 0"
    return ""


def to_row(shape: Shape) -> list[str | int | float]:
    """Convert to one list: `["image", 640, 480]`."""
    return [shape.modality, *(getattr(shape, name) for name in shape.__slots__)]


def from_row(modality: Modality, values: Iterable[Any]) -> Shape:
    """Reverse `to_row`. Raises KeyError or TypeError for another list."""
    return SHAPES[modality](*values)


# `cut_short`: the end of the file is missing (if anyone checked). For audio: libsndfile cannot
# seek in it (`unseekable`), or fails with an error after which vLLM does not try FFmpeg
# (`unreadable`), or its tags are not UTF-8 (`tags`).
Fault = Literal["", "cut_short", "unseekable", "unreadable", "tags"]
# OpenCV reads it from memory (vllm/multimodal/video_decoders/opencv.py, 0.32): it gets no frame of
# a single group of pictures, and loses the first of several.
STREAMED = "an MPEG transport stream: the server's decoder may find no frame in it"


@dataclass(frozen=True, slots=True, order=True)
class Encoding:
    """How a file encodes its shape; fields of other modalities keep their defaults.

    `file_mib` is rounded up: vLLM limits files in whole MiB. `codec` is FFmpeg's name of the video
    codec. For audio: `channels`, and `sample_format` as FFmpeg decodes it, empty if libsndfile
    decodes it to float32. `promised_frames` is the header's frame count of a video that has fewer
    frames, else 0. `sent_frames`: a client sent the frames themselves; `all_frames`: to vLLM's
    library, which then samples none. `fetched`: the server downloads it from a URL.
    `transport_stream`: an MPEG-TS, such as the segments of HLS. `claimed_samples` is the length
    that the server's loader assumes for audio of another length, 0 if it uses the real one. `fault`
    is any other problem for that loader. `given`: only the size is known, there is no file.
    """

    file_mib: int = 1
    codec: str = ""
    channels: int = 0
    sample_format: str = ""
    promised_frames: int = 0
    unpromised: bool = False
    lone_frame: bool = False
    sent_frames: bool = False
    all_frames: bool = False
    fetched: bool = False
    transport_stream: bool = False
    claimed_samples: int = 0
    fault: Fault = ""
    given: bool = False


PLAIN = Encoding()
"""Encoding of a small image without anything special: true of most items."""

_PLAIN = asdict(PLAIN)


def non_default_fields(encoding: Encoding) -> dict[str, int | str]:
    """Return the fields unlike `PLAIN`, by name: only these are written."""
    return {n: value for n, plain in _PLAIN.items() if (value := getattr(encoding, n)) != plain}


def takes_video_as_audio(modalities: Container[Modality]) -> bool:
    """True if the model takes audio but not video: it hears the sound of a recording."""
    return "audio" in modalities and "video" not in modalities


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """A shape as a file encodes it."""

    shape: Shape
    encoding: Encoding = PLAIN

    @property
    def modality(self) -> Modality:
        return self.shape.modality


ItemLike = Shape | EncodedItem
"""An item to check: its shape alone, or as its file encodes it."""


def as_encoded_item(item: ItemLike) -> EncodedItem:
    """Treat a bare shape as an ordinary file."""
    return item if isinstance(item, EncodedItem) else EncodedItem(item)


# A `PIL.Image`, or an array or tensor of pixels, also of several frames; no such type is imported.
Picture = Any


def is_channels_last(axes: Sequence[int]) -> bool:
    """vLLM's rule for pixels (`ImageProcessorItems`, multimodal/parse.py, 0.32)."""
    return axes[-1] in (1, 3, 4)


def resize_picture(picture: Picture, width_px: int, height_px: int) -> Picture:
    """Resize a picture, or frames; each pixel of an array becomes the mean of what it covers."""
    if not hasattr(picture, "shape"):
        # The shape was turned by EXIF, and the image was not: then it keeps its EXIF.
        turned = (width_px < height_px) != (picture.width < picture.height)
        return picture.resize((height_px, width_px) if turned else (width_px, height_px))
    import numpy as np

    def shares(pixels: int, fewer: int) -> Any:
        """Rows of the share that each of the `pixels` has in one of `fewer`."""
        edges, starts = np.linspace(0, pixels, fewer + 1)[:, None], np.arange(pixels)
        covered = np.minimum(edges[1:], starts + 1) - np.maximum(edges[:-1], starts)
        return covered.clip(0) * (fewer / pixels)

    # Of a tensor, NumPy reads neither bfloat16 nor what is on a GPU.
    is_tensor, is_last = hasattr(picture, "new_tensor"), is_channels_last(picture.shape)
    pixels = np.asarray(picture.detach().cpu().float() if is_tensor else picture)
    planes = np.moveaxis(pixels, -1, -3) if is_last else pixels
    rows, columns = planes.shape[-2:]
    planes = shares(rows, height_px) @ planes @ shares(columns, width_px).T
    planes = planes if "float" in str(picture.dtype) else planes.round()
    pixels = np.moveaxis(planes, -3, -1) if is_last else planes
    return picture.new_tensor(pixels) if is_tensor else pixels.astype(picture.dtype)


SIZE: Final = "size:"
EXAMPLES: Final = "size:4032x3024, size:1920x1080,30fps,12s or size:16000Hz,45s"
UNKNOWN_CONTENT: Final = "damage, codec and download size are not known without the file"

_SIDES = re.compile(r"(\d{1,9})x(\d{1,9})")
_NUMBER = re.compile(r"(\d{1,18}(?:\.\d{1,25})?(?:e[-+]\d{1,2})?)([A-Za-z]+)")
_UNITS: Final = {"fps": "fps", "s": "duration_s", "Hz": "sample_rate_hz", "ch": "channels"}
# Formats that vLLM loads at the same cost as any other, and FFmpeg's names of video codecs.
_FORMATS: Final = {
    **dict.fromkeys(("jpeg", "png", "webp", "gif", "bmp", "tiff"), "image"),
    **dict.fromkeys(("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mjpeg", "theora"), "video"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus"), "audio"),
}
_KINDS: Final[dict[str, Callable[[str], Any]]] = {
    **{n: str if plain == "" else int for n, plain in _PLAIN.items() if n != "given"},
    "fault": {fault: fault for fault in get_args(Fault)}.__getitem__,
    **dict.fromkeys(("num_frames", "num_samples", "sample_rate_hz"), int),
    **dict.fromkeys(("fps", "duration_s"), float),
}


def is_size(path: str) -> bool:
    return path.startswith(SIZE)


def with_tag(path: str, place: str) -> str:
    """Return a size that stands at `place` as an item of its own, unless it has a tag."""
    return path if "#" in path else f"{path}#{place}"


def parse_size(path: str) -> EncodedItem:
    """Return the item that a size gives. Raises ValueError, which says what is wrong with it."""
    return _parse(path.removeprefix(SIZE).partition("#")[0])


@lru_cache(maxsize=1 << 14)
def _parse(text: str) -> EncodedItem:
    values: dict[str, Any] = {}
    for word in text.split(","):
        new = _read_word(word)
        if values.keys() & new:
            raise ValueError(f"not a size: {word} says again what another word says")
        values |= new
    form = values.pop("format", "")
    encoding = {name: values.pop(name) for name in _PLAIN if name in values}
    shape = _shape(values)
    if why := invalid_reason(shape):
        raise ValueError(f"not a size: {why}")
    if form and _FORMATS[form] != shape.modality:
        raise ValueError(f"not a size: {form} is no format of {shape.modality}")
    if form and shape.modality == "video":
        encoding["codec"] = form
    return EncodedItem(shape, Encoding(**encoding, given=True))


def _read_word(word: str) -> dict[str, Any]:
    """Return the fields that a word sets. Raises ValueError."""
    if sides := _SIDES.fullmatch(word):
        return {"width_px": int(sides[1]), "height_px": int(sides[2])}
    if word in _FORMATS:
        return {"format": word}
    number = _NUMBER.fullmatch(word)
    name, _, value = (_UNITS.get(number[2], ""), "", number[1]) if number else word.partition("=")
    try:
        return {name: _KINDS[name](value)}
    except (KeyError, ValueError):
        raise ValueError(f"not a size: cannot read {word!r}; write {EXAMPLES}") from None


def _shape(values: dict[str, Any]) -> Shape:
    try:
        if "sample_rate_hz" in values:
            samples = round(values.pop("duration_s", 0) * values["sample_rate_hz"])
            values.setdefault("num_samples", samples)
            return AudioShape(**values)
        if len(values) == 2:
            return ImageShape(**values)
        values.setdefault("num_frames", max(1, round(values["fps"] * values["duration_s"])))
        return VideoShape(**values)
    except (KeyError, TypeError):
        raise ValueError(f"not a size: write {EXAMPLES}") from None


def format_size(item: EncodedItem, tag: str = "") -> str:
    """Reverse `parse_size`."""
    shape, units = item.shape, {name: unit for unit, name in _UNITS.items()}
    words = [] if isinstance(shape, AudioShape) else [f"{shape.width_px}x{shape.height_px}"]
    for name, value in (asdict(shape) | non_default_fields(item.encoding)).items():
        text = str(int(value) if isinstance(value, bool) else value).removesuffix(".0")
        if name in _KINDS:
            words.append(f"{text}{units[name]}" if name in units else f"{name}={text}")
    return SIZE + ",".join(words) + (f"#{tag}" if tag else "")
