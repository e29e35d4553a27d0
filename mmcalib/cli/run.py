"""`mmcalib run`: tunes vLLM for your media."""

from __future__ import annotations

from mmcalib.cli import command
from mmcalib.cli.results import ResultOptions
from mmcalib.options.option import options
from mmcalib.options.run import ProbeOptions, RunOptions


@options
class RunCommandOptions:
    job: RunOptions
    flags: list[str] | None = command.RUN_FLAGS
    described: command.GpuOptions
    results: ResultOptions
    probe: ProbeOptions
    verbose: bool = command.VERBOSE
    help_all: bool = command.HELP_ALL


def run(options: RunCommandOptions) -> None:
    """Tune vLLM for your media: measure them, derive limits, write a config and check it.

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --out ./out

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --gpu L4,L40S
    """
    import sys
    import time
    from dataclasses import replace
    from functools import partial
    from itertools import product
    from zlib import crc32

    from mmcalib.cli import output
    from mmcalib.cli.progress import StepTimes, terminal
    from mmcalib.errors import UsageError
    from mmcalib.models.resolve import cache_dir
    from mmcalib.processes import give_back_large_blocks
    from mmcalib.workflows.run.run import run as run_job
    from mmcalib.workflows.run.session import Job, RunOutcome

    started = time.monotonic()
    give_back_large_blocks()
    named = map(output.split_price, output.split_names(options.job.gpu))
    prices = {
        output.gpu_that_serves(command.gpu_named(name, options.described)): price
        for name, price in named
    }
    job_of = partial(Job.of, probe=options.probe, flags=options.flags or [])
    jobs = [
        job_of(replace(options.job, model=model or options.job.model), gpu=gpu)
        for model, gpu in product(output.split_names(options.job.model), prices)
    ]
    job, out = jobs[0], options.job.out
    kind = f"run {options.job.validate} {options.job.model} {options.job.gpu}"
    times = StepTimes(cache_dir() / "steps" / f"{crc32(kind.encode()):08x}.json")
    console, progress = terminal(quiet=options.results.quiet, verbose=options.verbose, times=times)
    if len(jobs) > 1:
        output.compare(jobs, progress, console, prices, out, options.results)
        times.save()
        return
    if any(prices.values()):
        raise UsageError("a price compares several GPUs", hint="--gpu L4=0.80/h,L40S=1.90/h")
    output.check_output_dir(out, force=options.results.force)
    outcome = RunOutcome(on_change=partial(output.save, out=out))
    try:
        calibration = run_job(job, outcome, progress)
    except KeyboardInterrupt:
        if outcome.skipped or outcome.calibration:
            console.print(f"{out} has the results so far; a new run starts over", markup=False)
        raise
    times.save()
    seconds = time.monotonic() - started
    shown = options.results
    output.finish(calibration, out, console, shown, command=sys.argv[1:], seconds=seconds)
