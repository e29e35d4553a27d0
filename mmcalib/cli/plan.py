"""Plan, validate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.command import (
    Capability,
    ConfigFile,
    FileAndFlags,
    GpuMemory,
    Quiet,
    Verbose,
    VllmFlags,
    command,
)
from mmcalib.options.run import AllowedDomains, AllowedRoot, ProofOptions, Requests


def plan(
    flags: VllmFlags = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Checkpoint folder or hub id; may come from --config or --log instead.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Such as H100-80G or L4; auto: the present one, and the default without --log.",
        ),
    ] = None,
    gpu_memory: GpuMemory = None,
    capability: Capability = None,
    config: ConfigFile = None,
    goal: Annotated[
        str,
        typer.Option(metavar="GOAL", help="fits, concurrency>=16 or kv_tokens>=200k."),
    ] = "fits",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARG[=LEAST]",
            help="An argument that no fix may change, such as kv_cache_dtype, or make less than "
            "max_model_len=32k; repeatable.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What a vLLM server printed: model, GPU and arguments of its start.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Find the cheapest memory fixes with which a model fits a GPU, by rehearsing them.

    Example: mmcalib plan --model Qwen/Qwen2.5-VL-7B-Instruct --gpu L4 --goal "concurrency>=4"
    """
    from rich.console import Console

    from mmcalib.cli.command import print_json
    from mmcalib.cli.output import gpu_named
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.terminal_memory import print_plan
    from mmcalib.workflows.plan.plan import plan as plan_for

    where = gpu_named(gpu, gpu_memory, capability)
    console = Console(stderr=True, highlight=False)
    found = plan_for(
        model,
        gpu=where,
        config=config,
        flags=flags or [],
        goal=goal,
        keep=keep or [],
        log=log,
        progress=Silent() if quiet else Terminal(console, verbose=verbose),
    )
    if as_json:
        print_json(found)
    if not quiet:
        print_plan(found, console)
    if found.verdict == "under-reserved":
        raise VerdictError(
            f"{found.goal} is reached on {found.gpu}, and what startup reserves does not hold it",
            hint="another --gpu, a lower --goal, or mmcalib run --gpu, which caps items",
        )
    if found.verdict == "out of reach":
        raise VerdictError(
            f"no combination of fixes reaches {found.goal} on {found.gpu}",
            hint="a smaller model, another --gpu, or a lower --goal"
            + (", or less to --keep" if found.kept else ""),
        )


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

    from mmcalib.cli.command import print_json
    from mmcalib.cli.output import gpu_named
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.terminal_memory import print_validation
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
        print_validation(found, console)
    if found.verdict == "fail":
        failed = first_failed(found.checks)
        hint = next(iter(failed.remedies), "")
        raise VerdictError(f"the verdict is no: {failed.name}: {failed.detail}", hint=hint)
