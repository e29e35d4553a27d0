"""`mmcalib rehearse`: what an engine configuration leaves for KV cache on a GPU, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.command import Capability, ConfigFile, FileAndFlags, GpuMemory, Quiet, Verbose
from mmcalib.domain.traffic import ANSWER_TOKENS, STEP_S
from mmcalib.errors import UsageError

_STEP_MS = STEP_S * 1000


def rehearse(
    flags: FileAndFlags = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Checkpoint folder or hub id; may come from --config instead.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Such as H100-80G or L4; auto: the present one, and the default.",
        ),
    ] = None,
    gpu_memory: GpuMemory = None,
    capability: Capability = None,
    config: ConfigFile = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="FILE FILE", help="Two such files, side by side."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Where the media of --requests are. May be repeated.",
        ),
    ] = None,
    requests: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="JSONL of chat requests to serve there, after the startup. May be repeated.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Requests under way at a time; default: all come at once."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            min=0.001,
            help="Requests a second, where a step takes --step-ms.",
        ),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help='Each request when its own "timestamp" says.')
    ] = False,
    step_ms: Annotated[
        float,
        typer.Option(
            metavar="MS", min=0.001, help="What a step is assumed to take, for these two."
        ),
    ] = _STEP_MS,
    answer_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Answers to requests that do not say.")
    ] = ANSWER_TOKENS,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 when the engine would not start.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; a list of two with --compare.")
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Rehearse vLLM's startup on a GPU without having it: memory, budget, and why.

    Example: mmcalib rehearse --model Qwen/Qwen2.5-VL-3B-Instruct --gpu L4 -- --max-model-len 32768
    """
    from rich.console import Console

    from mmcalib.cli.command import print_json
    from mmcalib.cli.output import gpu_named
    from mmcalib.cli.progress import Terminal
    from mmcalib.domain.traffic import Arrivals
    from mmcalib.errors import VerdictError
    from mmcalib.memory.rehearse import AUTO
    from mmcalib.memory.rehearse import rehearse as rehearse_all
    from mmcalib.progress import Silent
    from mmcalib.report.terminal_memory import print_rehearsals, print_traffic
    from mmcalib.workflows.traffic.rehearse import rehearse_traffic

    if data and not requests:
        raise UsageError("--data needs --requests", hint="mmcalib run calibrates for a corpus")
    if requests and compare:
        raise UsageError("--requests are served under one configuration", hint="--config FILE")
    if (concurrency is not None) + (rate is not None) + timestamps > 1:
        raise UsageError(
            "--concurrency, --rate and --timestamps are one or the other", hint="--concurrency 64"
        )
    if not requests and (concurrency is not None or rate is not None or timestamps):
        raise UsageError(
            "--concurrency, --rate and --timestamps need --requests",
            hint="--requests requests.jsonl",
        )
    if answer_tokens != ANSWER_TOKENS and not requests:
        raise UsageError("--answer-tokens needs --requests", hint="--requests requests.jsonl")
    if step_ms != _STEP_MS and rate is None and not timestamps:
        raise UsageError("--step-ms needs --rate or --timestamps", hint="--rate 2")
    if config is not None and compare is not None:
        raise UsageError("--config and --compare are one or the other", hint="--compare FILE FILE")
    where = gpu_named(gpu, gpu_memory, capability) or AUTO
    console = Console(stderr=True, highlight=False)
    progress = Silent() if quiet else Terminal(console, verbose=verbose)
    if requests:
        found = [
            rehearse_traffic(
                model,
                requests=requests,
                data=data or [],
                gpu=where,
                config=config,
                flags=flags or [],
                arrivals=Arrivals(concurrency, rate, step_ms / 1000, timed=timestamps),
                answer_tokens=answer_tokens,
                progress=progress,
            )
        ]
        if as_json:
            print_json(found[0])
        if not quiet:
            print_rehearsals(found, console)
            if found[0].traffic is not None:
                print_traffic(found[0].traffic, found[0].gpu, console)
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
            print_rehearsals(found, console)
    failed = [one for one in found if not one.starts]
    if strict and failed:
        why = failed[0].memory.note
        raise VerdictError(
            f"vLLM would not start on {failed[0].gpu}: {why}",
            hint="mmcalib run --gpu NAME calibrates for a corpus of yours",
        )
    if strict and any(one.traffic and one.traffic.status == "fail" for one in found):
        raise VerdictError(
            "serving these requests takes more memory than there is",
            hint="mmcalib run --gpu NAME calibrates for them",
        )
