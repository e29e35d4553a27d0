"""`mmcalib run` for several models or GPUs: a folder of results for each, and one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mmcalib.admission.calibration import Calibration
from mmcalib.cli.command import print_document
from mmcalib.cli.output import check_output_dir, save
from mmcalib.engine.environment import serve_command
from mmcalib.errors import UsageError, VerdictError
from mmcalib.files import write_text
from mmcalib.report.terminal import print_comparison
from mmcalib.results.calibration import ComparedRun, Comparison
from mmcalib.version import __version__
from mmcalib.workflows.run.job import Job, RunOutcome
from mmcalib.workflows.run.run import run_each

if TYPE_CHECKING:
    from rich.console import Console

    from mmcalib.progress import Progress

COMPARISON = "comparison.json"


def split_names(names: str | None) -> list[str | None]:
    """Split a list at commas, without repeats. The name of an existing folder may have commas."""
    if names is None or Path(names).exists():
        return [names]
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip())) or [names]


def compare(
    jobs: Sequence[Job],
    out: Path,
    progress: Progress,
    finish: Callable[..., None],
    console: Console,
    *,
    as_json: bool,
    quiet: bool,
    force: bool,
) -> None:
    """Run the jobs, `finish` each in its folder, and compare. Raises VerdictError if all fail."""
    folders = [out / name for name in _folder_names(jobs)]
    for folder in folders:
        check_output_dir(folder, force=force)
    if (out / COMPARISON).exists() and not force:
        raise UsageError(f"--out {out} has a comparison", hint="--force, or --out another folder")
    outcomes = [RunOutcome(on_change=partial(save, out=folder)) for folder in folders]
    found = Comparison(mmcalib=__version__, runs=[])
    refused: VerdictError | None = None
    results = run_each(jobs, outcomes, progress)
    for job, folder, calibration in zip(jobs, folders, results, strict=True):
        gpu = job.gpu.name if job.gpu else None
        if isinstance(calibration, Calibration):
            row = ComparedRun.of(calibration, gpu, folder.name)
            try:
                finish(calibration, folder, console, as_json=False, quiet=True)
            except VerdictError as error:
                refused = error if row.verdict == "pass" else refused
        else:
            starts = False if isinstance(calibration, VerdictError) else None
            row = ComparedRun.from_error(calibration, job.model, gpu, folder.name, starts=starts)
        found = Comparison(mmcalib=__version__, runs=[*found.runs, row])
        write_text(out / COMPARISON, found.model_dump_json(indent=2) + "\n")
        if not quiet:
            ended = f"{len(found.runs)} of {len(jobs)}: {folder.name} {row.verdict.upper()}"
            console.print(ended, markup=False, style="bold")
    if as_json:
        print_document(found.model_dump_json(indent=2))
    if not quiet:
        print_comparison(found, console)
        console.print(f"Details: {out / COMPARISON}, and a folder for each", markup=False)
    passed = [run for run in found.runs if run.verdict == "pass"]
    if not passed:
        first = found.runs[0]
        raise VerdictError(f"none of {len(jobs)} passed: {first.problem}", hint=first.remedy)
    if not quiet:
        for run in passed:
            serve = serve_command(out / run.folder / "engine.yaml")
            console.print(f"Serve:  {serve}", markup=False, style="bold", soft_wrap=True)
    if refused is not None:
        raise refused


def _folder_names(jobs: Sequence[Job]) -> list[str]:
    """Such as `Qwen2.5-VL-3B-Instruct-L4`; with the organization if two models share a name."""
    last = [Path(model).name for model in dict.fromkeys(job.model for job in jobs)]
    names = []
    for job in jobs:
        short = Path(job.model).name
        model = short if last.count(short) == 1 else job.model
        parts = [model, job.gpu.name] if job.gpu else [model]
        names.append(re.sub(r"[^\w.+-]+", "-", "-".join(parts)).strip("-"))
    return names
