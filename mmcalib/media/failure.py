"""What reading foreign bytes may raise, and how a failure is said in one line."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from mmcalib.text import NO_ACCESS, NO_ANSWER, NO_FILE, NO_PERMISSION, one_line

# vLLM takes such a sound; whether the model does depends on the model.
NO_SAMPLES = "a sound without samples"


class Unreadable(Exception):  # noqa: N818 - a value in flight, turned into `Skipped` by `probe`
    """The bytes are not media, or are damaged; the message is the reason."""


class NotMedia(Unreadable):
    """The bytes are of no kind of media."""


# What Pillow lets out of its header parsers on damaged input; the builtin types are here because
# its plugins index and compute on unchecked header fields. `reading_by_pillow` has the two that a
# wrong call of ours raises as well.
_READ_ERRORS: tuple[type[Exception], ...] = (
    *(OSError, ValueError, EOFError, SyntaxError, LookupError, ArithmeticError, RuntimeError),
    *(MemoryError, struct.error, zlib.error, Image.DecompressionBombError),
)

# What PyAV and libsndfile let out besides.
_FFMPEG = "av.error"
_THEIRS = ((_FFMPEG, "FFmpegError"), ("soundfile", "SoundFileError"))

_WORDS: dict[type[Exception], str] = {
    FileNotFoundError: NO_FILE,
    PermissionError: NO_PERMISSION,
    TimeoutError: NO_ANSWER,
    MemoryError: "needs more memory than there is",
    EOFError: "damaged: ends too early",
}

_FFMPEG_WORDS = {
    "InvalidDataError": "damaged: FFmpeg cannot read it",
    "ExitError": "damaged: FFmpeg searches it without end",
    # The file was opened before: it is what the file names that may not be.
    "PermissionError": "damaged: FFmpeg cannot read it",
}

# Their messages say nothing without the class: a key, an index, an operand.
_TERSE = (LookupError, TypeError, ArithmeticError, AttributeError)


@contextmanager
def reading_by_pillow() -> Iterator[None]:
    """Turns a TypeError or AttributeError from within Pillow, whose plugins compute on unchecked
    header fields, into `Unreadable`. One that a call of ours raises stays what it is: a bug.
    """
    try:
        yield
    except (TypeError, AttributeError) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is None or not trace.tb_frame.f_globals.get("__name__", "").startswith("PIL."):
            raise
        raise Unreadable(reason(error)) from error


def read_errors() -> tuple[type[Exception], ...]:
    """What the libraries that read media raise for damaged ones, to be asked for once something
    was raised: a library that is not imported, which takes long, has raised nothing.
    """
    imported = [(sys.modules[module], name) for module, name in _THEIRS if module in sys.modules]
    return (*_READ_ERRORS, *(getattr(module, name) for module, name in imported))


def failures() -> tuple[type[Exception], ...]:
    """All that a reader of media may raise; as `read_errors`."""
    return (Unreadable, *read_errors())


def reason(error: Exception) -> str:
    """What is wrong with a file, in one line of at most 200 characters."""
    if isinstance(error, Unreadable):
        return str(error)
    by_ffmpeg = type(error).__module__ == _FFMPEG
    if by_ffmpeg and (words := _FFMPEG_WORDS.get(type(error).__name__, "")):
        return words
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words
    # OSError and FFmpegError put an errno and a path around what they have to say.
    said = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno and not by_ffmpeg:
        return one_line(f"{NO_ACCESS}{said}")
    if isinstance(error, _TERSE) or not said:
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return one_line(f"damaged: {said}")
