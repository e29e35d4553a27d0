"""Commands, errors, exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from mmcalib.cli.check import check
from mmcalib.cli.command import (
    OnceEach,
    RunHelp,
    Unparsed,
    begin,
    command,
    during_interrupt,
    flush,
    print_error,
    spell_for_the_locale,
    unparsed,
)
from mmcalib.cli.corpus import scan
from mmcalib.cli.info import doctor, serve
from mmcalib.cli.list import list_known
from mmcalib.cli.plan import plan, validate
from mmcalib.cli.rehearse import rehearse
from mmcalib.cli.results import diff, report
from mmcalib.cli.run import run
from mmcalib.errors import MmcalibError, unexpected
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


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 error, 2 usage, 3 the verdict is no, 130
    interrupted.
    """
    spell_for_the_locale()
    begin(sys.argv[1:])
    # A polite kill unwinds like an interrupt, so that the engine's processes end with this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        code = app(_spell_as_options(sys.argv[1:]), standalone_mode=False)
        flush()
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
        if isinstance(error, Unparsed):
            error = unparsed(error, sys.argv[1:], COMMANDS)
        _fail(error if isinstance(error, MmcalibError) else unexpected(error))


def _fail(error: MmcalibError) -> NoReturn:
    """Say what is wrong and what to type, on standard error and as the JSON that was asked for."""
    # Names and other people's words are in it.
    print(plain(f"error: {error.message}"), file=sys.stderr)
    if error.hint:
        print(plain(f"  try: {error.hint}"), file=sys.stderr)
    with contextlib.suppress(OSError, MmcalibError):
        print_error(error)
        flush()
    sys.exit(error.exit_code)


def _spell_as_options(words: list[str]) -> list[str]:
    """`help` and `version`, which people type for commands, as the options that they are."""
    match words:
        case ["help", *command]:
            return [*command, "--help"]
        case ["version"]:
            return ["--version"]
    return words


def _interrupted() -> NoReturn:
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)
