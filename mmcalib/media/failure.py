"""What reading foreign bytes may raise, and how a failure is said in one line."""

from __future__ import annotations

import struct
import zlib

import av
import soundfile
from PIL import Image

from mmcalib.corpus.wording import one_line

# What Pillow, PyAV and libsndfile let out of their header parsers on damaged input; the builtin
# types are here because Pillow's plugins index, convert and compute on unchecked header fields.
READ_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    EOFError,
    SyntaxError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    av.error.FFmpegError,
    soundfile.SoundFileError,
)


class Unreadable(Exception):  # noqa: N818 - a value in flight, turned into `Skipped` by `probe`
    """The bytes are not media, or are damaged; the message is the reason."""


def reason(error: Exception) -> str:
    """The class of `error` and its message in one line of at most 200 characters."""
    # OSError and FFmpegError put an errno and a path around what they have to say.
    said = getattr(error, "strerror", None) or str(error)
    return one_line(f"{type(error).__name__}: {said}" if said else type(error).__name__)
