"""Commands, errors, exit codes."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer

from mmcalib.cli.check import check
from mmcalib.cli.command import OnceEach, RunHelp, command, drop_output, expect_json, print_error
from mmcalib.cli.corpus import scan
from mmcalib.cli.info import doctor, serve
from mmcalib.cli.list import list_known
from mmcalib.cli.plan import plan, validate
from mmcalib.cli.rehearse import rehearse
from mmcalib.cli.results import diff, report
from mmcalib.cli.run import run
from mmcalib.errors import MmcalibError, OutputError, UsageError, unexpected
from mmcalib.text import plain

WELCOME = """\
mmcalib measures what the images, videos and audio that you serve cost in vLLM,
derives its multimodal limits from that, and proves them with the real engine.
It needs neither a GPU nor weights.

Start with a folder of your media:
  mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --gpu L4
  vllm serve --config out/engine.yaml

Commands:
{commands}

mmcalib COMMAND --help shows its options, mmcalib doctor what is missing here."""
INTERRUPTED = 130

# What Typer raises for words that it cannot parse: BadParameter is the one that it exports.
_Unparsed: type[Exception] = typer.BadParameter.__mro__[1]

_PASSES_FLAGS_ON = ("run", "rehearse", "plan", "validate")
# `--max-model-len` is no misspelt `--model`, which Typer has for as near.
_MISSPELT = 0.8
_TAKES_DATA = ("run", "scan", "validate")

app = typer.Typer(
    name="mmcalib",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)
# In the order in which they are met; what each is for, in words that fit one line of 80. Without
# them a command works, but is not listed.
COMMANDS: dict[str, tuple[Callable[[Any], None], str]] = {
    "run": (run, "Calibrate vLLM for a corpus, write a config and prove it."),
    "doctor": (doctor, "Check the installation and print a fix for each problem."),
    "list": (list_known, "The models and GPUs that are known by name."),
    "rehearse": (rehearse, "Predict the memory of any engine config on a GPU without having it."),
    "plan": (plan, "Find the cheapest changes that make a model fit."),
    "validate": (validate, "Judge a vLLM config that somebody wrote."),
    "check": (check, "Does new data fit a calibration? A gate for pipelines."),
    "scan": (scan, "Count the shapes of a corpus; needs no vLLM."),
    "serve": (serve, ""),
    "report": (report, "Render the report of a calibration again."),
    "diff": (diff, "What two calibrations do not have in common."),
}
for _name, (_command, _purpose) in COMMANDS.items():
    _help = RunHelp if _name == "run" else OnceEach
    app.command(_name, short_help=_purpose, cls=_help, hidden=not _purpose)(command(_command))


def _version(wanted: bool) -> None:
    if wanted:
        # Asking for the metadata of packages takes as long as Typer itself.
        from mmcalib.version import __version__

        print(f"mmcalib {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Right-size vLLM for the media you really serve.

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media
    """
    if context.invoked_subcommand is None:
        width = max(map(len, COMMANDS))
        listed = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items() if text]
        print(WELCOME.format(commands="\n".join(listed)))


def _replace_what_the_locale_lacks() -> None:
    """Print a question mark for a character that the locale's encoding lacks, as C's lacks most."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")


def during_interrupt(error: BaseException) -> bool:
    """Whether the error came up while the processes of an interrupted command were closed."""
    cause = error.__context__
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__context__
    return cause is not None


def _explain_unparsed(error: Exception) -> UsageError:
    """Typer's message for the words of the command line, with the next thing to type."""
    words = sys.argv[1:]
    said = str(getattr(error, "message", "") or error)
    if callable(whole := getattr(error, "format_message", None)):
        said = str(whole())
    name = next((word for word in words if word in COMMANDS), "")
    hint = f"mmcalib {name} --help" if name else "mmcalib --help"
    typed = getattr(error, "option_name", None)
    if said.startswith("No such option") and name in _PASSES_FLAGS_ON:
        hint = f"flags of vllm serve go after --: mmcalib {name} ... -- {typed} ..."
        own: list[str] = list(getattr(error, "possibilities", None) or ())
        if near := get_close_matches(str(typed), own, n=1, cutoff=_MISSPELT):
            hint = f"mmcalib {name} ... {near[0]} ..."
    if typed == "--calibration" and name:
        hint = f"a calibration is an argument here: mmcalib {name} out/calibration.json"
    if name and typed in words[: words.index(name)]:
        hint = f"options go after the command: mmcalib {name} {typed} ..."
    if "unexpected extra argument" in said and name in _TAKES_DATA:
        hint = "--data names the media, each folder or file with a --data of its own"
    return UsageError(said[:1].lower() + said[1:].rstrip("."), hint=hint)


def _flush() -> None:
    """Write out what was printed; nothing where the reader has left. Raises OutputError."""
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        if not isinstance(error, BrokenPipeError):
            said = f"cannot write to standard output: {error.strerror}"
            raise OutputError(said, hint="df -h .") from error


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 error, 2 usage, 3 verdict no, 130 interrupted."""
    _replace_what_the_locale_lacks()
    expect_json(sys.argv[1:])
    # A polite kill unwinds like an interrupt, so that the engine's processes end with this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        code = app(_spell_as_options(sys.argv[1:]), standalone_mode=False)
        _flush()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code or 0)
    except (KeyboardInterrupt, typer.Abort):
        _interrupted()
    except Exception as error:
        if during_interrupt(error):
            _interrupted()
        if os.environ.get("MMCALIB_DEBUG") == "1":
            raise
        if isinstance(error, _Unparsed):
            error = _explain_unparsed(error)
        _fail(error if isinstance(error, MmcalibError) else unexpected(error))


def _fail(error: MmcalibError) -> NoReturn:
    """Say what is wrong and what to type, on standard error and as the JSON that was asked for."""
    # Names and other people's words are in it.
    print(plain(f"error: {error.message}"), file=sys.stderr)
    if error.hint:
        print(plain(f"  try: {error.hint}"), file=sys.stderr)
    with contextlib.suppress(OSError, MmcalibError):
        print_error(error)
        _flush()
    sys.exit(error.exit_code)


def _spell_as_options(words: list[str]) -> list[str]:
    """`help` and `version`, which people type for commands, as the options that they are."""
    match words:
        case ["help", *rest]:
            return [*rest, "--help"]
        case ["version"]:
            return ["--version"]
    return words


def _interrupted() -> NoReturn:
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)
