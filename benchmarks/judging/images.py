"""Pictures of every mode, container and extreme size."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Make = Callable[[Path], object]
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


def _saved(picture: Callable[[], Image.Image], form: str, **options: Any) -> Make:
    return lambda path: picture().save(path, form, **options)


def _sized(width: int, height: int, seed: int) -> Make:
    form = "JPEG" if width * height > 1 << 16 else "PNG"
    return _saved(functools.partial(ramp, width, height, seed=seed), form)


def _rotated(path: Path) -> None:
    picture = ramp(320, 160)
    exif = picture.getexif()
    exif[_ORIENTATION] = _QUARTER
    picture.save(path, "JPEG", exif=exif)


def _many(form: str) -> Make:
    first, *rest = (ramp(80, 60, seed=seed) for seed in range(3))
    return _saved(lambda: first, form, save_all=True, append_images=rest)


def _enlarged() -> Image.Image:
    return ramp(200, 200, seed=5).resize((400, 300))


def cut(make: Make, share: float = 1.0, minus: int = 0, before: bytes = b"") -> Make:
    """Write what `make` writes without its end, which may be a box of MP4 and what follows."""

    def write(path: Path) -> None:
        make(path)
        data = path.read_bytes()
        path.write_bytes(
            data[: data.index(before) - 4 if before else int(len(data) * share) - minus]
        )

    return write


def given(data: bytes) -> Make:
    """Write these bytes."""
    return lambda path: path.write_bytes(data)


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


def _makers() -> dict[str, Make]:
    # The least first: the first name is what an example is shrunk to.
    made: dict[str, Make] = {"image-224x224.png": _sized(224, 224, 1)}
    for number, (width, height) in enumerate((*_SIZES, *_LARGE)):
        suffix = "jpg" if width * height > 1 << 16 else "png"
        made[f"image-{width}x{height}.{suffix}"] = _sized(width, height, number)
    # Distinct content of one size: what the processor cache has to make room for.
    for number in range(8):
        made[f"image-same-{number}.jpg"] = _sized(1024, 1000, 100 + number)
    names = {"jpg": "JPEG", "tif": "TIFF", "jp2": "JPEG2000", "pbm": "PPM", "pgm": "PPM"}
    for mode, suffixes in _MODES.items():
        for suffix in suffixes:
            picture = functools.partial(ramp, *SIZE, mode)
            form = names.get(suffix, suffix.upper())
            made[f"image-{mode.replace(';', '_')}.{suffix}"] = _saved(picture, form)
    for name in _CUT:
        for by, how in _CUTS.items():
            made[f"image-cut-{by}-{name}"] = cut(made[f"image-{name}"], **how)
    whole = _saved(_enlarged, "JPEG")
    wide = functools.partial(ramp, 640, 480)
    return made | {
        "image-a#b.png": _sized(64, 64, 9),
        "image-a?b c.png": _sized(64, 64, 10),
        "image-a%20b.png": _sized(64, 64, 11),
        "image-thumbnail-cut.jpg": _thumbnail_cut,
        "image-tailed.jpg": _tailed,
        "image-exif-rotated.jpg": _rotated,
        "image-animated.gif": _many("GIF"),
        "image-animated.webp": _many("WEBP"),
        "image-animated.png": _many("PNG"),
        "image-pages.tif": _many("TIFF"),
        "image-mpo.jpg": _many("MPO"),
        "image-transparent.png": _saved(lambda: ramp(64, 64, "P"), "PNG", transparency=0),
        "image-progressive.jpg": _saved(wide, "JPEG", progressive=True, quality=60),
        "image-truncated.jpg": cut(whole, 0.6),
        "image-header-only.jpg": cut(whole, 0.02),
        "image-empty.png": given(b""),
        "image-text.png": given(b"this is no picture\n"),
        "image-vector.svg": given(
            b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
        ),
        # Above VLLM_MAX_IMAGE_PIXELS, 178,956,970 (vllm/envs.py, 0.32).
        "image-bomb.png": _saved(lambda: Image.new("1", (13500, 13500)), "PNG"),
    }


MAKERS = _makers()
HEAVY = ("image-6000x4000.jpg", "image-2000x9000.jpg", "image-bomb.png")
