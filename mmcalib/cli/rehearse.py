"""`mmcalib rehearse`: what an engine configuration leaves for KV cache on a GPU, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.options import Capability, ConfigFile, GpuMemory, Quiet, Verbose, VllmFlags
from mmcalib.options.completion import gpu_names, model_ids


def rehearse(
    flags: VllmFlags = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Checkpoint folder or hub id; may come from --config instead.",
            autocompletion=model_ids,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Such as H100-80G or L4; auto: the present one, and the default.",
            autocompletion=gpu_names,
        ),
    ] = None,
    gpu_memory: GpuMemory = None,
    capability: Capability = None,
    config: ConfigFile = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="FILE FILE", help="Two such files, side by side."),
    ] = None,
    python: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Another environment's: what changes with its vLLM. Twice: from one to the other.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="With --python: items of these sizes. May be repeated. Default: usual ones.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 when the engine would not start.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; a list of two with --compare.")
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Rehearse vLLM's startup on a GPU that need not be there: memory, budget, and why.

    Example: mmcalib rehearse --model Qwen/Qwen2.5-VL-3B-Instruct --gpu L4 -- --max-model-len 32768
    """
    from rich.console import Console

    from mmcalib.cli.document import print_json
    from mmcalib.cli.gpu import gpu_named
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import UsageError, VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.memory import comparison
    from mmcalib.report.release_comparison import release_comparison
    from mmcalib.workflows.memory.rehearse import AUTO
    from mmcalib.workflows.memory.rehearse import rehearse as rehearse_all
    from mmcalib.workflows.upgrade.compare import compare_releases

    if python and compare is not None:
        raise UsageError("--python and --compare are one or the other", hint="--config FILE")
    if data and not python:
        raise UsageError("--data is for --python", hint="mmcalib run calibrates for a corpus")
    if config is not None and compare is not None:
        raise UsageError("--config and --compare are one or the other", hint="--compare FILE FILE")
    where = gpu_named(gpu, gpu_memory, capability) or AUTO
    console = Console(stderr=True, highlight=False)
    progress = Silent() if quiet else Terminal(console, verbose=verbose)
    if python:
        both = compare_releases(
            model,
            python,
            gpu=where,
            data=data or [],
            config=config,
            flags=flags or [],
            progress=progress,
        )
        if as_json:
            print_json(both)
        if not quiet:
            release_comparison(both, console)
        found = [one.rehearsal for one in (both.before, both.after) if one.rehearsal is not None]
    else:
        found = rehearse_all(
            model,
            gpu=where,
            configs=compare or (config,),
            flags=flags or [],
            progress=progress,
        )
        if as_json:
            print_json(found if compare else found[0])
        if not quiet:
            comparison(found, console)
    failed = [one for one in found if not one.starts]
    if strict and failed:
        why = failed[0].memory.note
        raise VerdictError(
            f"vLLM would not start on {failed[0].gpu}: {why}",
            hint="mmcalib run --gpu NAME calibrates for a corpus of yours",
        )
