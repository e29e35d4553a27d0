"""What the name of a file says that it is; what it is its content says."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

IMAGE_ENDINGS: Final = frozenset(
    {
        *("jpg", "jpeg", "jpe", "jfif", "png", "ppm", "pgm", "pbm", "pnm", "gif", "webp", "bmp"),
        *("tif", "tiff", "avif", "heic", "heif", "jp2", "ico", "psd"),
    }
)
VIDEO_ENDINGS: Final = frozenset(
    {
        *("mp4", "m4v", "mov", "avi", "mkv", "webm", "mpg", "mpeg", "ogv", "wmv", "flv", "ts"),
        *("mts", "m2ts", "3gp", "mjpeg", "h264"),
    }
)
SOUND_ENDINGS: Final = frozenset(
    {
        *("wav", "mp3", "flac", "ogg", "oga", "opus", "m4a", "aac", "aif", "aiff", "wma", "amr"),
        *("au", "mka", "weba"),
    }
)
MEDIA_ENDINGS: Final = IMAGE_ENDINGS | VIDEO_ENDINGS | SOUND_ENDINGS


def ending_of(path: str) -> str:
    """What follows the last dot of a name, in small letters; empty where it has none."""
    return PurePosixPath(path).suffix.lower().removeprefix(".")
