"""The errors of media readers, and their texts in one line."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from mmcalib.text import NO_ACCESS, NO_ANSWER, NO_FILE, NO_PERMISSION, one_line

# vLLM accepts such audio; whether the model does depends on the model.
NO_SAMPLES = "audio without samples"


class Unreadable(Exception):  # noqa: N818 - a value in flight, turned into `Skipped` by `probe`
    """The bytes are damaged or not media; the message is the reason."""


class NotMedia(Unreadable):
    """The bytes are not media of any kind."""


# Pillow's parsers raise these on damaged input, because they compute on unchecked header fields.
# `reading_by_pillow` handles the two types that a bug in mmcalib could raise too.
_READ_ERRORS: tuple[type[Exception], ...] = (
    *(OSError, ValueError, EOFError, SyntaxError, LookupError, ArithmeticError, RuntimeError),
    *(MemoryError, struct.error, zlib.error),
)

# Errors of PyAV, libsndfile and Pillow.
_FFMPEG = "av.error"
_THEIRS = (
    (_FFMPEG, "FFmpegError"),
    ("soundfile", "SoundFileError"),
    ("PIL.Image", "DecompressionBombError"),
)

_WORDS: dict[type[Exception], str] = {
    FileNotFoundError: NO_FILE,
    PermissionError: NO_PERMISSION,
    TimeoutError: NO_ANSWER,
    MemoryError: "not enough memory to read it",
    EOFError: "damaged: ends too early",
}

_FFMPEG_WORDS = {
    "InvalidDataError": "damaged: FFmpeg cannot read it",
    "ExitError": "damaged: FFmpeg timed out",
    # The file itself was opened before, so FFmpeg may not open another file that it names.
    "PermissionError": "damaged: FFmpeg cannot read it",
}

# Messages of these classes are only a key, an index or an operand: name the class too.
_TERSE = (LookupError, TypeError, ArithmeticError, AttributeError)


@contextmanager
def reading_by_pillow() -> Iterator[None]:
    """Turn Pillow's TypeError and AttributeError into `Unreadable`: its plugins compute on
    unchecked header fields. Raised anywhere else, they are bugs in mmcalib.
    """
    try:
        yield
    except (TypeError, AttributeError) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is None or not trace.tb_frame.f_globals.get("__name__", "").startswith("PIL."):
            raise
        raise Unreadable(error_reason(error)) from error


def read_errors() -> tuple[type[Exception], ...]:
    """Return the errors that libraries imported so far raise for damaged media. Call it when one
    was raised: then no other library needs a slow import.
    """
    imported = [(sys.modules[module], name) for module, name in _THEIRS if module in sys.modules]
    return (*_READ_ERRORS, *(getattr(module, name) for module, name in imported))


def media_errors() -> tuple[type[Exception], ...]:
    """Return all errors that a reader of media may raise; see `read_errors`."""
    return (Unreadable, *read_errors())


def error_reason(error: Exception) -> str:
    """Describe what is wrong with a file, in one line of at most 200 characters."""
    if isinstance(error, Unreadable):
        return str(error)
    by_ffmpeg = type(error).__module__ == _FFMPEG
    if by_ffmpeg and (words := _FFMPEG_WORDS.get(type(error).__name__, "")):
        return words
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words
    # OSError and FFmpegError put an errno and a path around their message.
    message = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno and not by_ffmpeg:
        return one_line(f"{NO_ACCESS}{message}")
    if isinstance(error, _TERSE) or not message:
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return one_line(f"damaged: {message}")
