"""`mmcalib run`: the main job."""

from __future__ import annotations

from typing import Annotated

import typer

from mmcalib.cli.command import (
    Capability,
    Force,
    GpuMemory,
    HelpAll,
    Quiet,
    Strict,
    Verbose,
    VllmFlags,
    command,
)
from mmcalib.cli.results import EmitToo, NoThumbnails, RedactPaths
from mmcalib.options.run import ProbeOptions, RunOptions


@command
def run(
    options: RunOptions,
    *,
    flags: VllmFlags = None,
    gpu_memory: GpuMemory = None,
    capability: Capability = None,
    emit: EmitToo = None,
    no_thumbnails: NoThumbnails = False,
    redact_paths: RedactPaths = False,
    probe: ProbeOptions,
    strict: Strict = False,
    force: Force = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print calibration.json, of several comparison.json."),
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    help_all: HelpAll = False,
) -> None:
    """Calibrate vLLM for a corpus: measure, derive, write a config and prove it.

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --out ./out

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --gpu L4,L40S
    """
    import sys
    from dataclasses import replace
    from functools import partial
    from itertools import product

    from rich.console import Console

    from mmcalib.admission.calibration import Calibration
    from mmcalib.cli.compare import compare, several
    from mmcalib.cli.output import claim, finish, gpu_named, gpu_that_serves, save
    from mmcalib.cli.progress import Terminal
    from mmcalib.processes import give_back_large_blocks
    from mmcalib.progress import Silent
    from mmcalib.report.terminal import first_answer
    from mmcalib.workflows.run.job import Job, RunSoFar
    from mmcalib.workflows.run.run import run as run_job

    give_back_large_blocks()
    named = [gpu_named(name, gpu_memory, capability) for name in several(options.gpu)]
    gpus = dict.fromkeys(map(gpu_that_serves, named))
    jobs = [
        Job.of(
            replace(options, model=model or options.model), gpu=gpu, probe=probe, flags=flags or []
        )
        for model, gpu in product(several(options.model), gpus)
    ]
    job, out = jobs[0], options.out
    console = Console(stderr=True, highlight=False)
    progress = Silent() if quiet else Terminal(console, verbose=verbose)
    finished = partial(
        finish,
        strict=strict,
        thumbnails=not no_thumbnails,
        redact_paths=redact_paths,
        emit=emit or [],
        command=sys.argv[1:],
    )
    if len(jobs) > 1:
        compare(jobs, out, progress, finished, console, as_json=as_json, quiet=quiet, force=force)
        return
    claim(out, force=force)
    shown: list[Calibration] = []

    def changed(so_far: RunSoFar) -> None:
        save(so_far, out)
        if so_far.calibration is not None and not shown and not quiet:
            shown.append(so_far.calibration)
            first_answer(so_far.calibration, console)

    outcome = RunSoFar(on_change=changed)
    try:
        calibration = run_job(job, outcome, progress)
    except KeyboardInterrupt:
        if outcome.skipped or outcome.calibration:
            console.print(f"what was found so far is in {out}", markup=False)
        raise
    finished(calibration, out, console, as_json=as_json, quiet=quiet)
