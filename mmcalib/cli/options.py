"""Options that several commands have, and that say how a command behaves: for Typer alone.

What a library call can be asked too is in `mmcalib.options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.command import MORE
from mmcalib.errors import UsageError

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
