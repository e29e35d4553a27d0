"""Signatures for Typer, shared options, help panels, JSON (light).

Options that several commands have, and that say how a command behaves: for Typer alone.

What a library call can be asked too is in `mmcalib.options`.
"""

from __future__ import annotations

import codecs
import inspect
import json
import os
import re
import select
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from mmcalib.errors import OutputError, UsageError
from mmcalib.options.option import OptionField, Options, option_of, options_of

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


# Where `mmcalib run --help-all` lists the options that are not `basic`.
MORE = "More options"


class OnceEach(TyperCommand):
    """Refuses an option that is given twice but counts once: the last would win silently. A reader
    that leaves, as `head` does, ends it quietly.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        *_, order = self.make_parser(ctx).parse_args(list(args))
        seen = set()
        for option in order:
            if option.name in seen and not getattr(option, "multiple", True):
                name = max(option.opts, key=len)
                value = "" if getattr(option, "is_flag", False) else f" {option.metavar or 'VALUE'}"
                raise UsageError(f"{name} is given twice", hint=f"once: {name}{value}")
            seen.add(option.name)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            if not reader_has_left():
                raise
            drop_output()
            return None


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function as Typer calls it: with words, of which it gets options that were checked."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if _is_group(kind)}

    @wraps(function)
    def called(**words: Any) -> None:
        taken = {name: words[name] for name in hints.keys() & words.keys()}
        for name, kind in groups.items():
            own = {field.name: words[field.name] for field in options_of(kind)}
            taken[name] = kind.of_words(own)
        function(**taken)

    shown = [
        parameter
        for given in inspect.signature(function).parameters.values()
        for parameter in _parameters(given.replace(annotation=hints[given.name]))
    ]
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Options)


def _parameters(given: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """What Typer sees of a parameter: itself, its option as Typer has it, or those of its group."""
    if _is_group(given.annotation):
        yield from map(_parameter, options_of(given.annotation))
    elif (option := option_of(given.annotation)) is not None:
        yield _parameter(OptionField(given.name, given.annotation, option, given.default))
    else:
        yield given.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _parameter(field: OptionField) -> inspect.Parameter:
    option = field.option
    # Typer would offer `--no-strict` for a switch whose spelling it makes itself.
    spelled = option.spelled or ((field.spelling,) if field.type is bool else ())
    shown = typer.Option(
        *spelled,
        metavar=option.metavar,
        help=option.help,
        rich_help_panel=None if option.basic else MORE,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=Annotated[_said(field), shown],
    )


def _said(field: OptionField) -> Any:
    """The type of what the command line says."""
    if field.option.words is not None:
        said = field.option.words.type
    elif field.choices:
        said = str
    else:
        said = field.type
    return said | None if field.default is None else said


# The option that a word without one was meant for.
_MEANT = {"run": "--data", "plan": "--log"}


def _flags(context: typer.Context, words: list[str] | None) -> list[str] | None:
    # A pasted command begins with the program.
    if words and words[0] != "vllm" and not words[0].startswith("-"):
        is_file = words[0].endswith((".yaml", ".yml"))
        option = "--config" if is_file else _MEANT.get(context.info_name or "", "--config")
        raise UsageError(
            f"unexpected argument: {words[0]}",
            hint=f"did you mean {option} {words[0]}? vLLM's flags go after --",
        )
    return words


VllmFlags = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- VLLM FLAGS]", callback=_flags, help="Flags of `vllm serve`, after --."
    ),
]
# The model is the first word of these.
ServeWords = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- VLLM FLAGS]", help="Flags of `vllm serve`, after --."),
]
FileAndFlags = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [-- VLLM FLAGS]",
        help="What --config names, and flags of `vllm serve`, after --.",
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Another GPU's memory as torch reports it, as 24GiB.",
        rich_help_panel=MORE,
    ),
]
Capability = Annotated[
    str | None,
    typer.Option(
        metavar="X.Y",
        help="That GPU's compute capability, such as 8.9.",
        rich_help_panel=MORE,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="vLLM's YAML, a Kubernetes manifest, a compose file, Helm values or a script.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Show what vLLM logs, on standard error.", rich_help_panel=MORE
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit 3 when anything had to be skipped.", rich_help_panel=MORE),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite results in --out.")]


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


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every option."),
]


_printed = {"json": False}


def print_json(found: BaseModel | Sequence[BaseModel]) -> None:
    """All of it as ASCII: what of a file name is not UTF-8 stays an escape."""
    from pydantic import BaseModel

    whole = found.model_dump() if isinstance(found, BaseModel) else [f.model_dump() for f in found]
    print_document(json.dumps(whole, indent=2))


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
