"""Turns a function of options into a Typer command; options that several commands share."""

from __future__ import annotations

import inspect
import json
import os
import re
import select
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from mmcalib.errors import MmcalibError, UsageError
from mmcalib.options.option import (
    Option,
    argument,
    iter_options,
    make_options,
    option,
    options,
    read_words,
    switch,
)

if TYPE_CHECKING:
    from mmcalib.models.gpus import Gpu


def reader_has_left() -> bool:
    """True if standard output is a pipe that its reader has closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def drop_output() -> None:
    """Discard unwritten standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# The panel of `mmcalib run --help-all` for options that are not `basic`.
MORE = "More options"


class OnceEach(TyperCommand):
    """Rejects repeated options, and ends quietly if the reader of its output leaves."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        *_, order = self.make_parser(ctx).parse_args(list(args))
        seen = set()
        for given in order:
            if given.name in seen and not getattr(given, "multiple", True):
                name = max(given.opts, key=len)
                value = "" if getattr(given, "is_flag", False) else f" {given.metavar or 'VALUE'}"
                raise UsageError(f"{name} is repeated", hint=f"give it once: {name}{value}")
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
    """Wrap a function of one options class as a function that Typer can call."""
    (kind,) = [hint for name, hint in get_type_hints(function).items() if name != "return"]
    own = tuple(iter_options(kind))

    @wraps(function)
    def called(**words: Any) -> None:
        function(make_options(kind, read_words(own, words)))

    shown = [_parameter(one) for one in own]
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


def _complete(option: str, incomplete: str) -> list[str]:
    """The models or GPUs that the last name of a list may become."""
    before, comma, begun = incomplete.rpartition(",")
    if option == "model":
        from mmcalib.models.catalogue import bundled_models

        known = [one.id for one in bundled_models()]
    else:
        from mmcalib.models.gpus import catalogue_gpus

        known = [one.name for one in catalogue_gpus()]
    return [f"{before}{comma}{name}" for name in known if name.startswith(begun)]


def _parameter(own: Option) -> inspect.Parameter:
    """Describe an option to Typer."""

    def complete(incomplete: str) -> list[str]:
        return _complete(own.name, incomplete)

    if own.is_argument:
        shown = typer.Argument(metavar=own.metavar, help=own.help)
    else:
        shown = typer.Option(
            *own.spellings,
            metavar=own.metavar,
            help=own.help,
            callback=own.eager,
            autocompletion=complete if own.name in ("gpu", "model") else None,
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
    """The flags after --. A word before them is an error that suggests `meant` or --config."""

    def refuse_words(words: list[str]) -> list[str]:
        from mmcalib.configs.commands import names_file
        from mmcalib.configs.read import extract_serve_flags

        if extract_serve_flags(words) == words and not words[0].startswith("-"):
            named = "--config" if names_file(words[0]) else meant
            raise UsageError(
                f"unexpected argument: {words[0]}",
                hint=f"{named} {words[0]}; flags of vLLM go after --",
            )
        return words

    return argument("[-- VLLM FLAGS]", "Flags of `vllm serve`, after --.", read=refuse_words)


RUN_FLAGS, PLAN_FLAGS = _vllm_flags("--data"), _vllm_flags("--log")
FILE_AND_FLAGS = argument(
    "[FILE] [-- VLLM FLAGS]", "The --config file, and flags of `vllm serve` after --."
)
CONFIG_FILE = option(
    "FILE",
    "vLLM's YAML, manifest, compose file, chart, script or program; or FILE#NAME, FILE:LINE.",
)
VERBOSE = switch("Show vLLM's log on standard error.", "--verbose", "-v")
QUIET = switch("Print no progress and no summary.", basic=True)
STRICT = switch("Exit 3 if any file or request was skipped.")


@options
class GpuOptions:
    """A GPU that is not in the catalogue, or not all of one."""

    gpu_memory: str | None = option(
        "SIZE", "Memory of another GPU as torch reports it, such as 24GiB."
    )
    gpu_memory_free: str | None = option(
        "SIZE", "GPU memory that is free before vLLM starts, such as 17GiB; default: all."
    )
    capability: str | None = option("X.Y", "That GPU's compute capability, such as 8.9.")


def gpu_named(gpu: str | None, described: GpuOptions) -> Gpu | str | None:
    """The GPU of these options: its name, its description, or None. Raises UsageError."""
    from mmcalib.models import gpus

    gpu_memory, capability = described.gpu_memory, described.capability
    free = described.gpu_memory_free
    if gpu_memory is not None and gpu is not None:
        raise UsageError("--gpu and --gpu-memory exclude each other", hint="--gpu NAME")
    if (gpu_memory is None) != (capability is None):
        hint = f"{gpus.ANY_GPU_EXAMPLE}, or --gpu NAME"
        raise UsageError("--gpu-memory and --capability go together", hint=hint)
    named = gpus.describe_gpu(gpu_memory, capability) if gpu_memory and capability else gpu
    if free is None:
        return named
    if not isinstance(named, gpus.Gpu):
        named = gpus.resolve_gpu(named or gpus.AUTO)
    return gpus.with_free_memory(named, free)


class RunHelp(OnceEach):
    """Shows options of the panel `MORE` only with `--help-all`."""

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


def print_json(found: Any, indent: int | None = 2) -> None:
    """Print documents, dataclasses, or what has some of them, as ASCII with escapes."""

    def fields_of(one: Any) -> Any:
        return one.model_dump() if hasattr(one, "model_dump") else asdict(one)

    print_document(json.dumps(found, indent=indent, default=fields_of))


def print_document(text: str) -> None:
    """Print JSON text, a document or one of several lines."""
    _printed["json"] = True
    sys.stdout.write(text + "\n")


def expect_json(words: Sequence[str]) -> None:
    """Remember if the command line has --json."""
    own = words[: words.index("--")] if "--" in words else words
    _printed["json"] = "--json" not in own


def print_error(error: MmcalibError) -> None:
    """Print the error as JSON if --json was given and no document was printed yet."""
    if not _printed["json"]:
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()
        print_json({"error": {"kind": kind, "message": error.message, "hint": error.hint}})
