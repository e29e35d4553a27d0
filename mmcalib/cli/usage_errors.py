"""Every way for a command to end in one line: what is wrong, and the next thing to type."""

from __future__ import annotations

import codecs
import os
import select
import sys
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from io import TextIOWrapper

import typer

from mmcalib.errors import OutputError, UsageError

# What Typer raises for words that it cannot parse: BadParameter is the one that it exports.
Unparsed: type[Exception] = typer.BadParameter.__mro__[1]

_PASSES_FLAGS_ON = ("run", "rehearse", "plan", "validate")
# `--max-model-len` is no misspelt `--model`, which Typer has for as near.
_MISSPELT = 0.8
_TAKES_DATA = ("run", "scan", "validate")


def unparsed(error: Exception, words: Sequence[str], commands: Collection[str]) -> UsageError:
    """What Typer says of these `words`, and where the right ones are to be found."""
    said = str(getattr(error, "message", "") or error)
    if callable(whole := getattr(error, "format_message", None)):
        said = str(whole())
    command = next((word for word in words if word in commands), "")
    hint = f"mmcalib {command} --help" if command else "mmcalib --help"
    option = getattr(error, "option_name", None)
    if said.startswith("No such option") and command in _PASSES_FLAGS_ON:
        hint = f"flags of vllm serve go after --: mmcalib {command} ... -- {option} ..."
        own: list[str] = list(getattr(error, "possibilities", None) or ())
        if near := get_close_matches(str(option), own, n=1, cutoff=_MISSPELT):
            hint = f"mmcalib {command} ... {near[0]} ..."
    if option == "--calibration" and command:
        hint = f"a calibration is an argument here: mmcalib {command} out/calibration.json"
    if command and option in words[: words.index(command)]:
        hint = f"options go after the command: mmcalib {command} {option} ..."
    if "unexpected extra argument" in said and command in _TAKES_DATA:
        hint = "--data names the media, each folder or file with a --data of its own"
    return UsageError(said[:1].lower() + said[1:].rstrip("."), hint=hint)


def during_interrupt(error: BaseException) -> bool:
    """Whether it came up while what an interrupt had left was closed."""
    held = error.__context__
    while held is not None and not isinstance(held, KeyboardInterrupt):
        held = held.__context__
    return held is not None


def spell_for_the_locale() -> None:
    """A character that the locale's encoding lacks, as C's do most, is a question mark and no
    error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")


def flush() -> None:
    """Write out what was printed: at the end of the process nobody could say that it failed.

    Raises OutputError; does nothing where the reader has left, as `head` does.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        if not isinstance(error, BrokenPipeError):
            said = f"cannot write to standard output: {error.strerror}"
            raise OutputError(said, hint="df -h .") from error


def reader_has_left() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def drop_output() -> None:
    """Send what is still to be written to standard output nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
