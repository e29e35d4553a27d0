"""`mmcalib validate`: does a configuration that somebody wrote do what it says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.command import command
from mmcalib.cli.options import (
    Capability,
    ConfigFile,
    FileAndFlags,
    GpuMemory,
    Quiet,
    Verbose,
)
from mmcalib.options.corpus import AllowedDomains, AllowedRoot, Requests
from mmcalib.options.validate import ProofOptions


@command
def validate(
    *,
    flags: FileAndFlags = None,
    config: ConfigFile = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Checkpoint folder or hub id; may come from the file instead.",
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Media that will be served; may be repeated. Default: made-up ones, the largest "
            "that are admitted.",
        ),
    ] = None,
    requests: Requests = None,
    allowed_local_media_path: AllowedRoot = None,
    allowed_media_domains: AllowedDomains = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="GPU that will serve, such as H100-80G: its memory is rehearsed. "
            "auto: the present one.",
        ),
    ] = None,
    gpu_memory: GpuMemory = None,
    capability: Capability = None,
    proof: ProofOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Judge a vLLM config written by hand: what it really does, and whether it survives.

    Example: mmcalib validate engine.yaml --gpu L4

    Example: mmcalib validate deployment.yaml --gpu L4 -- --max-num-seqs 64
    """
    from rich.console import Console

    from mmcalib.cli.document import print_json
    from mmcalib.cli.gpu import gpu_named
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.validation_terminal import validated
    from mmcalib.results.part import first_failed
    from mmcalib.workflows.validate.validate import validate as validate_config

    console = Console(stderr=True, highlight=False)
    found = validate_config(
        config,
        model=model,
        data=data or [],
        requests=requests or [],
        allowed_local_media_path=allowed_local_media_path,
        allowed_media_domains=allowed_media_domains or (),
        gpu=gpu_named(gpu, gpu_memory, capability),
        flags=flags or [],
        validate=proof.validate,
        startup_budget_s=proof.startup_budget_s,
        progress=Silent() if quiet else Terminal(console, verbose=verbose),
    )
    if as_json:
        print_json(found)
    if not quiet:
        validated(found, console)
    if found.verdict == "fail":
        failed = first_failed(found.checks)
        hint = next(iter(failed.remedies), "")
        raise VerdictError(f"the verdict is no: {failed.name}: {failed.detail}", hint=hint)
