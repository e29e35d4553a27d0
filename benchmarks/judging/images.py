"""Pictures of every mode, container and extreme size."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (96, 64)
# EXIF's tag of the orientation, and its value for a quarter turn.
_ORIENTATION, _QUARTER = 0x0112, 6
_DESCRIPTION = 0x010E
# Cut by a byte, by PNG's last chunk, and by a third.
_CUTS: Mapping[str, dict[str, Any]] = {
    "1": {"minus": 1},
    "12": {"minus": 12},
    "third": {"share": 0.67},
}
_CUT = (
    *("RGB.png", "RGB.jpg", "RGB.webp", "RGB.bmp", "RGB.tif", "RGB.avif", "RGB.jp2", "RGB.ppm"),
    *("RGB.gif", "RGB.tga", "P.png", "1.tif"),
)

# Mode of the picture → containers that hold it, by the suffix of the file.
_MODES = {
    "1": ("png", "tif", "bmp", "pbm"),
    "L": ("png", "jpg", "tif", "webp", "gif", "bmp", "pgm", "pcx", "jp2"),
    "LA": ("png", "tif"),
    "P": ("png", "gif", "bmp", "tif", "pcx"),
    "RGB": ("png", "jpg", "webp", "bmp", "tif", "avif", "jp2", "ppm", "pcx", "gif", "ico", "tga"),
    "RGBA": ("png", "webp", "tif", "avif", "jp2", "ico", "tga"),
    "CMYK": ("jpg", "tif"),
    "YCbCr": ("jpg", "tif"),
    "I;16": ("png", "tif"),
    "I": ("tif",),
    "F": ("tif",),
    "LAB": ("tif",),
}

_SIZES = (
    *((1, 1), (1, 2), (2, 2), (1, 200), (200, 1), (1, 201), (3, 500), (27, 29), (28, 28)),
    *((13, 700), (700, 13), (10, 1990), (1990, 10), (10, 2010), (2010, 10), (20, 4000)),
    *((60, 12000), (12000, 60), (224, 224), (448, 448), (336, 672), (640, 480), (481, 641)),
    *((333, 1111), (1000, 750), (1024, 1024), (1279, 721), (800, 1400), (1600, 1200)),
)
_LARGE = ((3000, 2000), (6000, 4000), (2000, 9000))


def ramp(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Smooth, in colour, and unlike every other seed's."""
    noise = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    small = Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR)
    if mode in ("I", "F", "I;16"):
        return small.convert("L").convert("I").point(lambda v: v * 257).convert(mode)
    if mode == "LAB":
        return Image.merge("LAB", small.split())
    return small.convert(mode)


def _saved(path: Path, *, picture: Callable[[], Image.Image], suffix: str) -> None:
    names = {"jpg": "JPEG", "tif": "TIFF", "jp2": "JPEG2000", "pbm": "PPM", "pgm": "PPM"}
    picture().save(path, names.get(suffix, suffix.upper()))


def _sized(path: Path, *, width: int, height: int, seed: int) -> None:
    ramp(width, height, seed=seed).save(path, "JPEG" if width * height > 1 << 16 else "PNG")


def _rotated(path: Path) -> None:
    picture = ramp(320, 160)
    exif = picture.getexif()
    exif[_ORIENTATION] = _QUARTER
    picture.save(path, "JPEG", exif=exif)


def _many(path: Path, *, form: str) -> None:
    first, *rest = (ramp(80, 60, seed=seed) for seed in range(3))
    first.save(path, form, save_all=True, append_images=rest)


def _transparent(path: Path) -> None:
    ramp(64, 64, "P").save(path, "PNG", transparency=0)


def _progressive(path: Path) -> None:
    ramp(640, 480).save(path, "JPEG", progressive=True, quality=60)


def _truncated(path: Path, *, share: float) -> None:
    ramp(200, 200, seed=5).resize((400, 300)).save(path, "JPEG")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def cut(path: Path, *, make: Callable[[Path], object], share: float = 1.0, minus: int = 0) -> None:
    """What `make` writes, without its end."""
    make(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share) - minus])


def _thumbnail_cut(path: Path) -> None:
    """Of a camera: the thumbnail in its header has an end mark of its own."""
    thumbnail = io.BytesIO()
    ramp(40, 30).save(thumbnail, "JPEG")
    exif = ramp(1, 1).getexif()
    exif[_DESCRIPTION] = thumbnail.getvalue().decode("latin-1")
    ramp(400, 300).save(path, "JPEG", exif=exif)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])


def _tailed(path: Path) -> None:
    """With zeros behind its end, as phones leave a clip there."""
    ramp(320, 200).save(path, "JPEG")
    path.write_bytes(path.read_bytes() + bytes(100_000))


def _bytes(path: Path, *, data: bytes) -> None:
    path.write_bytes(data)


def _bomb(path: Path) -> None:
    # Above VLLM_MAX_IMAGE_PIXELS, 178,956,970 (vllm/envs.py, 0.32).
    Image.new("1", (13500, 13500)).save(path, "PNG")


def _makers() -> dict[str, Callable[[Path], object]]:
    made: dict[str, Callable[[Path], object]] = {}
    # The least first: the first name is what an example is shrunk to.
    made["image-224x224.png"] = functools.partial(_sized, width=224, height=224, seed=1)
    for number, (width, height) in enumerate((*_SIZES, *_LARGE)):
        suffix = "jpg" if width * height > 1 << 16 else "png"
        name = f"image-{width}x{height}.{suffix}"
        made[name] = functools.partial(_sized, width=width, height=height, seed=number)
    # Distinct content of one size: what the processor cache has to make room for.
    for number in range(8):
        made[f"image-same-{number}.jpg"] = functools.partial(
            _sized, width=1024, height=1000, seed=100 + number
        )
    for mode, suffixes in _MODES.items():
        for suffix in suffixes:
            picture = functools.partial(ramp, *SIZE, mode)
            name = f"image-{mode.replace(';', '_')}.{suffix}"
            made[name] = functools.partial(_saved, picture=picture, suffix=suffix)
    for name in _CUT:
        for by, how in _CUTS.items():
            whole = made[f"image-{name}"]
            made[f"image-cut-{by}-{name}"] = functools.partial(cut, make=whole, **how)
    made |= {
        "image-a#b.png": functools.partial(_sized, width=64, height=64, seed=9),
        "image-a?b c.png": functools.partial(_sized, width=64, height=64, seed=10),
        "image-a%20b.png": functools.partial(_sized, width=64, height=64, seed=11),
        "image-thumbnail-cut.jpg": _thumbnail_cut,
        "image-tailed.jpg": _tailed,
        "image-exif-rotated.jpg": _rotated,
        "image-animated.gif": functools.partial(_many, form="GIF"),
        "image-animated.webp": functools.partial(_many, form="WEBP"),
        "image-animated.png": functools.partial(_many, form="PNG"),
        "image-pages.tif": functools.partial(_many, form="TIFF"),
        "image-mpo.jpg": functools.partial(_many, form="MPO"),
        "image-transparent.png": _transparent,
        "image-progressive.jpg": _progressive,
        "image-truncated.jpg": functools.partial(_truncated, share=0.6),
        "image-header-only.jpg": functools.partial(_truncated, share=0.02),
        "image-empty.png": functools.partial(_bytes, data=b""),
        "image-text.png": functools.partial(_bytes, data=b"this is no picture\n"),
        "image-vector.svg": functools.partial(
            _bytes, data=b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
        ),
        "image-bomb.png": _bomb,
    }
    return made


MAKERS = _makers()
HEAVY = ("image-6000x4000.jpg", "image-2000x9000.jpg", "image-bomb.png")
