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

from mmcalib.cli.check import check, scan
from mmcalib.cli.command import OnceEach, RunHelp, command, drop_output, expect_json, print_error
from mmcalib.cli.info import doctor, list_known, serve
from mmcalib.cli.plan import plan, validate
from mmcalib.cli.rehearse import rehearse
from mmcalib.cli.results import diff, report
from mmcalib.cli.run import run
from mmcalib.errors import MmcalibError, OutputError, UsageError, unexpected
from mmcalib.text import printable

WELCOME = """\
mmcalib measures what your images, videos and audio cost in vLLM, derives
multimodal limits from that, and checks them with the real engine.
It needs no GPU and no weights.

Start with a folder of your media:
  mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --gpu L4
  vllm serve --config out/engine.yaml

Commands:
{commands}

mmcalib COMMAND --help shows options. mmcalib doctor checks your installation."""
INTERRUPTED = 130

# The error of Typer for words that it cannot parse. Typer exports only its subclass BadParameter.
_Unparsed: type[Exception] = typer.BadParameter.__mro__[1]

_PASSES_FLAGS_ON = ("run", "rehearse", "plan", "validate")
# Stricter than Typer, which takes `--max-model-len` for a misspelt `--model`.
_MISSPELT = 0.8
_TAKES_DATA = ("run", "validate")

app = typer.Typer(
    name="mmcalib",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)
# In the order of use, with a purpose that fits one line of 80.
COMMANDS: dict[str, tuple[Callable[[Any], None], str]] = {
    "run": (run, "Tune vLLM for your media: measure, write a config and check it."),
    "doctor": (doctor, "Check the installation and print a fix for each problem."),
    "list": (list_known, "List known models and GPUs, or explain a check."),
    "rehearse": (rehearse, "Predict the memory of any engine config on any GPU."),
    "plan": (plan, "Find the cheapest changes that make a model fit a GPU."),
    "validate": (validate, "Check an existing vLLM config."),
    "check": (check, "Check new data against a calibration, as a gate for pipelines."),
    "scan": (scan, "Count the items and sizes of your media; needs no vLLM."),
    "serve": (serve, "Run vllm serve, also where its own script does not start."),
    "report": (report, "Show a calibration again, or write its config in another form."),
    "diff": (diff, "Compare two calibrations or rehearsals."),
}
for _name, (_command, _purpose) in COMMANDS.items():
    _help = RunHelp if _name == "run" else OnceEach
    app.command(_name, short_help=_purpose, cls=_help)(command(_command))


def _version(wanted: bool) -> None:
    if wanted:
        # Reading package metadata takes as long as importing Typer.
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
    """Tune vLLM for the media that you serve.

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media
    """
    if context.invoked_subcommand is None:
        width = max(map(len, COMMANDS))
        listed = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
        print(WELCOME.format(commands="\n".join(listed)))


def _replace_what_the_locale_lacks() -> None:
    """Print a question mark for characters that the locale, such as C, cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")


def during_interrupt(error: BaseException) -> bool:
    """True if the error arose while an interrupted command closed its processes."""
    cause = error.__context__
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__context__
    return cause is not None


def _explain_unparsed(error: Any) -> UsageError:
    """Typer's message about the command line, with the next thing to type."""
    words, message = sys.argv[1:], str(error.format_message())
    name = next((word for word in words if word in COMMANDS), "")
    hint = f"mmcalib {name} --help" if name else "mmcalib --help"
    typed = getattr(error, "option_name", None)
    if message.startswith("No such option") and name in _PASSES_FLAGS_ON:
        hint = f"flags of vllm serve go after --: mmcalib {name} ... -- {typed} ..."
        own: list[str] = list(getattr(error, "possibilities", None) or ())
        near = get_close_matches(str(typed), own, n=1, cutoff=_MISSPELT)
        # A longer word, such as --output, but no other option, such as --gpu-memory-utilization.
        if near := near or [one for one in own if str(typed).removeprefix(one).isalpha()]:
            hint = f"mmcalib {name} ... {near[0]} ..."
    if typed == "--calibration" and name:
        hint = f"a calibration is an argument here: mmcalib {name} out/calibration.json"
    if name and typed in words[: words.index(name)]:
        hint = f"options go after the command: mmcalib {name} {typed} ..."
    if "unexpected extra argument" in message and name in _TAKES_DATA:
        hint = "--data FOLDER for each folder or file of media"
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=hint)


def _flush() -> None:
    """Flush standard output, and stay quiet if its reader has left. Raises OutputError."""
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        if not isinstance(error, BrokenPipeError):
            message = f"cannot write to standard output: {error.strerror}"
            raise OutputError(message, hint="df -h .") from error


def main() -> None:
    """Run the command line. Exit codes: 0 pass, 1 error, 2 usage, 3 fail, 130 interrupted."""
    _replace_what_the_locale_lacks()
    expect_json(sys.argv[1:])
    # SIGTERM unwinds like an interrupt, so that engine processes end too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        words = sys.argv[1:]
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        code = app(["--version"] if words == ["version"] else words, standalone_mode=False)
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
    """Print the error and its hint on standard error, and as JSON with --json."""
    print(printable(f"error: {error.message}"), file=sys.stderr)
    if error.hint:
        print(printable(f"  try: {error.hint}"), file=sys.stderr)
    with contextlib.suppress(OSError, MmcalibError):
        print_error(error)
        _flush()
    sys.exit(error.exit_code)


def _interrupted() -> NoReturn:
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)
