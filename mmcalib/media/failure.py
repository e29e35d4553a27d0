"""What reading foreign bytes may raise, and how a failure is said in one line."""

from __future__ import annotations

import struct
import zlib

import av
import soundfile
from PIL import Image

from mmcalib.corpus.wording import one_line


class Unreadable(Exception):  # noqa: N818 - a value in flight, turned into `Skipped` by `probe`
    """The bytes are not media, or are damaged; the message is the reason."""


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

# All that a reader of media may raise.
FAILURES: tuple[type[Exception], ...] = (Unreadable, *READ_ERRORS)


_WORDS: dict[type[Exception], str] = {
    FileNotFoundError: "no such file any more",
    PermissionError: "no permission to read it",
    TimeoutError: "no answer in time",
    MemoryError: "needs more memory than there is",
    EOFError: "damaged: ends too early",
    av.error.InvalidDataError: "damaged: FFmpeg cannot read it",
    av.error.ExitError: "damaged: FFmpeg searches it without end",
}

# Their messages say nothing without the class: a key, an index, an operand.
_TERSE = (LookupError, TypeError, ArithmeticError, AttributeError)


def reason(error: Exception) -> str:
    """What is wrong with a file, in one line of at most 200 characters."""
    if isinstance(error, Unreadable):
        return str(error)
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words
    # OSError and FFmpegError put an errno and a path around what they have to say.
    said = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno and not isinstance(error, av.error.FFmpegError):
        return one_line(f"cannot be read: {said}")
    if isinstance(error, _TERSE) or not said:
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return one_line(f"damaged: {said}")
