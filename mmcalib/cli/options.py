"""Options that several commands have, in one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.completion import one_of

Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SOURCE",
        help="Folder, file, 'pattern', archive or URL of media; @FILE or - reads paths; may be "
        "repeated.",
    ),
]
Requests = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="JSONL of OpenAI chat requests with local media; may be repeated."
    ),
]
AllowedRoot = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Root below which requests may name files; default: their own folder.",
    ),
]
VllmFlags = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- VLLM FLAGS]", help="Flags of `vllm serve`, after --."),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Another GPU's memory as torch reports it, as 24GiB."),
]
Capability = Annotated[
    str | None,
    typer.Option(metavar="X.Y", help="That GPU's compute capability, such as 8.9."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What `vllm serve --config` reads."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show what vLLM logs, on standard error.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit 3 when anything had to be skipped.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite results in --out.")]
AllowUrl = Annotated[
    bool,
    typer.Option("--allow-url", help="Read media that requests name by URL, from wherever it is."),
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Processes that read media; default: one per CPU."),
]
ItemTimeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="An item that takes longer to read is skipped."),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="WHERE",
        help="Where media are read: local or ray.",
        autocompletion=one_of("local", "ray"),
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The Ray cluster; default: RAY_ADDRESS, or a new one."),
]
NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Read every file, whether or not it was read before."),
]
