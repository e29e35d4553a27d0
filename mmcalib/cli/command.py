"""Commands as Typer has them, the options that they share, help panels, JSON (light).

The library has none of these options; those that it has too are in `mmcalib.options`.
"""

from __future__ import annotations

import codecs
import inspect
import json
import os
import re
import select
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING
from difflib import get_close_matches
from functools import wraps
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from mmcalib.errors import OutputError, UsageError
from mmcalib.options.option import (
    Option,
    argument,
    make_options,
    option,
    options_of,
    read_words,
    switch,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from mmcalib.errors import MmcalibError

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
    typed = getattr(error, "option_name", None)
    if said.startswith("No such option") and command in _PASSES_FLAGS_ON:
        hint = f"flags of vllm serve go after --: mmcalib {command} ... -- {typed} ..."
        own: list[str] = list(getattr(error, "possibilities", None) or ())
        if near := get_close_matches(str(typed), own, n=1, cutoff=_MISSPELT):
            hint = f"mmcalib {command} ... {near[0]} ..."
    if typed == "--calibration" and command:
        hint = f"a calibration is an argument here: mmcalib {command} out/calibration.json"
    if command and typed in words[: words.index(command)]:
        hint = f"options go after the command: mmcalib {command} {typed} ..."
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


# Where `mmcalib run --help-all` lists the options that are not `basic`.
MORE = "More options"


class OnceEach(TyperCommand):
    """Refuses an option that is given twice but counts once: the last would win silently. A reader
    that leaves, as `head` does, ends it quietly.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        *_, order = self.make_parser(ctx).parse_args(list(args))
        seen = set()
        for given in order:
            if given.name in seen and not getattr(given, "multiple", True):
                name = max(given.opts, key=len)
                value = "" if getattr(given, "is_flag", False) else f" {given.metavar or 'VALUE'}"
                raise UsageError(f"{name} is given twice", hint=f"once: {name}{value}")
            seen.add(given.name)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            if not reader_has_left():
                raise
            drop_output()
            return None


def command(function: Callable[[Any], None]) -> Callable[..., None]:
    """The function of a class of options as Typer calls it: with the words of each option."""
    (kind,) = [hint for name, hint in get_type_hints(function).items() if name != "return"]
    own = tuple(options_of(kind))

    @wraps(function)
    def called(**words: Any) -> None:
        function(make_options(kind, read_words(own, words)))

    shown = [_parameter(one) for one in own]
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


def _parameter(own: Option) -> inspect.Parameter:
    """The option as Typer reads it."""
    if own.is_argument:
        shown = typer.Argument(metavar=own.metavar, help=own.help)
    else:
        shown = typer.Option(
            *own.spellings,
            metavar=own.metavar,
            help=own.help,
            min=own.least,
            callback=own.eager,
            is_eager=own.eager is not None,
            rich_help_panel=None if own.basic else MORE,
        )
    said = own.words_type or (str if own.choices else own.value_type)
    return inspect.Parameter(
        own.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if own.default is MISSING else own.default,
        annotation=Annotated[said | None if own.default is None else said, shown],
    )


def _vllm_flags(meant: str) -> Any:
    """The flags behind --; a word before them was `meant` for an option, unless it is a file's."""

    def refuse_words(words: list[str]) -> list[str]:
        # A pasted command begins with the program.
        if words[0] != "vllm" and not words[0].startswith("-"):
            named = "--config" if words[0].endswith((".yaml", ".yml")) else meant
            raise UsageError(
                f"unexpected argument: {words[0]}",
                hint=f"did you mean {named} {words[0]}? vLLM's flags go after --",
            )
        return words

    return argument("[-- VLLM FLAGS]", "Flags of `vllm serve`, after --.", read=refuse_words)


RUN_FLAGS, PLAN_FLAGS = _vllm_flags("--data"), _vllm_flags("--log")
FILE_AND_FLAGS = argument(
    "[FILE] [-- VLLM FLAGS]", "What --config names, and flags of `vllm serve`, after --."
)
GPU_MEMORY = option("SIZE", "Another GPU's memory as torch reports it, as 24GiB.")
CAPABILITY = option("X.Y", "That GPU's compute capability, such as 8.9.")
CONFIG_FILE = option(
    "FILE", "vLLM's YAML, a Kubernetes manifest, a compose file, Helm values or a script."
)
VERBOSE = switch("Show what vLLM logs, on standard error.", "--verbose", "-v")
QUIET = switch("No progress and no summary.", basic=True)
STRICT = switch("Exit 3 when anything had to be skipped.")


def either(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def none_of(names: Sequence[str]) -> str:
    """What another name is: `neither a nor b`, `none of a, b, c`."""
    return (
        f"neither {names[0]} nor {names[1]}" if len(names) == 2 else f"none of {', '.join(names)}"
    )


class RunHelp(OnceEach):
    """Leaves out options of the panel `MORE` until `--help-all` asks for them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Options": [], MORE: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels[getattr(parameter, "rich_help_panel", None) or "Options"].append(record)
        for heading, lines in panels.items():
            if heading != MORE or ctx.meta.get(MORE):
                with formatter.section(heading):
                    formatter.write_dl(lines)


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[MORE] = True
        print(context.get_help())
        raise typer.Exit


HELP_ALL = switch("Show every option.", eager=_show_all, basic=True)


_printed = {"json": False}


def print_json(found: BaseModel | Sequence[BaseModel], indent: int | None = 2) -> None:
    """All of it as ASCII: what of a file name is not UTF-8 stays an escape."""
    from pydantic import BaseModel

    whole = found.model_dump() if isinstance(found, BaseModel) else [f.model_dump() for f in found]
    print_document(json.dumps(whole, indent=indent))


def print_document(text: str) -> None:
    """Print JSON that is made already, or one line of several."""
    _printed["json"] = True
    sys.stdout.write(text + "\n")


def begin(words: Sequence[str]) -> None:
    """Expect a document where these words of the command line ask for one."""
    own = words[: words.index("--")] if "--" in words else words
    _printed["json"] = "--json" not in own


def print_error(error: MmcalibError) -> None:
    """Print the error as the document that was asked for, unless there is one already."""
    if not _printed["json"]:
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()
        found = {"kind": kind, "message": error.message, "hint": error.hint}
        print_document(json.dumps({"error": found}, indent=2))
