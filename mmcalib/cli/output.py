"""Writes the folder of results, one for each of several models or GPUs, and finds the GPU."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.checks.catalogue import RUN_COMPLETION
from mmcalib.cli.command import print_document
from mmcalib.cli.results import ResultOptions
from mmcalib.engine.environment import serve_command, serve_program
from mmcalib.errors import OutputError, UsageError, VerdictError
from mmcalib.files import write_text, write_texts
from mmcalib.models import gpus
from mmcalib.models.gpus import AUTO, resolve_gpu
from mmcalib.progress import Progress
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.html.canvas import undrawn_words
from mmcalib.report.report import Report, html, md
from mmcalib.report.rows import check_line
from mmcalib.report.summary import summary
from mmcalib.report.terminal import print_comparison
from mmcalib.results.calibration import ComparedRun, Comparison, skipped_jsonl, with_environment
from mmcalib.results.engine_yaml import engine_yaml
from mmcalib.results.part import first_failed
from mmcalib.text import MIB
from mmcalib.version import __version__
from mmcalib.workflows.run.run import run_each
from mmcalib.workflows.run.session import Job, RunOutcome

# The difference from the user's configuration to the tuned one.
DIFF = "engine.diff"
FILES = ("engine.yaml", "calibration.json", "report.html", "report.md", "skipped.jsonl")
# Written with `--emit`, or if the user gave a configuration.
OTHER_FORMS = (*(form.file for form in CONFIGURATIONS.values() if form.file not in FILES), DIFF)
# For the results, and as much in files that go again.
_LEAST_BYTES = 32 * MIB
# A form with environment variables that any server can read.
_PLAINEST = "env"
_LEFT_OUT = "the server rejects some items, so they were left out; to include them"


def _repeat_with_variables(command: Sequence[str], options: ResultOptions) -> str:
    """The command of this run with --force and a form that has environment variables."""
    own = [*command[: command.index("--")]] if "--" in command else [*command]
    flags = command[len(own) :]
    if not options.force:
        own.append("--force")
    if not any(CONFIGURATIONS[name].variables for name in options.emit or ()):
        own += ["--emit", _PLAINEST]
    return shlex.join(["mmcalib", *own, *flags])


def check_output_dir(out: Path, *, force: bool) -> None:
    """Check that `out` can be written and holds nothing of value. Makes and removes nothing."""
    try:
        out.exists()
    except OSError as error:
        raise UsageError(f"--out: {error.strerror}", hint="--out another folder") from error
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file", hint="--out another folder")
    if out.is_dir() and not force and not _is_left_over(out):
        raise UsageError(f"--out {out} is not empty", hint="--force, or --out another folder")
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to --out {out}", hint="--out another folder")
    for name, folder in (("--out", nearest), ("TMPDIR", Path(tempfile.gettempdir()))):
        if (free := shutil.disk_usage(folder).free) < _LEAST_BYTES:
            words = f"{name}: {folder} has {free // MIB} MiB free, of {_LEAST_BYTES // MIB} needed"
            raise OutputError(words, hint="df -h, and --out or TMPDIR on another disk")


def _is_left_over(out: Path) -> bool:
    """True if the folder holds only files of an unfinished run."""
    names = {path.name for path in out.iterdir()} - {"skipped.jsonl"}
    if names != {"calibration.json"}:
        return not names
    try:
        found = Calibration.load(out / "calibration.json")
    except UsageError:
        return False
    return any(check.name == RUN_COMPLETION.name for check in found.checks)


def save(so_far: RunOutcome, out: Path) -> None:
    """Write the skipped items and the calibration so far. The first write removes older results."""
    if so_far.calibration is not None:
        so_far.calibration.save(out / "calibration.json")
    write_text(out / "skipped.jsonl", skipped_jsonl(so_far.skipped))
    if so_far.calibration is None:
        # Only after a successful write, as the disk may be full.
        for name in {*FILES, *OTHER_FORMS} - {"skipped.jsonl"}:
            (out / name).unlink(missing_ok=True)


def finish(
    calibration: Calibration,
    out: Path,
    console: Console,
    options: ResultOptions,
    *,
    command: Sequence[str] = (),
    seconds: float | None = None,
) -> None:
    """Write the final files, print the summary, and raise VerdictError unless the verdict is pass.
    Only a pass writes `engine.yaml` and the forms of `emit`, all or none. `command` has the words
    of this run, and `seconds` its time.
    """
    thumbnails, redact_paths = not options.no_thumbnails, options.redact_paths
    passes = calibration.verdict == "pass"
    config = out / "engine.yaml"
    serve = serve_command(config)
    report = Report(calibration, serve, thumbnails=thumbnails, redact_paths=redact_paths)
    texts = {out / "report.html": html(report), out / "report.md": md(report)}
    served = with_environment(calibration.server.environment, serve)
    if passes:
        texts = {config: engine_yaml(calibration, served), **texts}
    write_texts(texts)
    also = []
    if passes:
        if calibration.yours and calibration.yours.diff:
            write_text(out / DIFF, calibration.yours.diff)
            also.append(str(out / DIFF))
        # Last: a form that cannot carry a value fails, and then none of them is written.
        wanted = [CONFIGURATIONS[name] for name in dict.fromkeys(options.emit or ())]
        forms = [form for form in wanted if form.file not in FILES]
        write_texts({out / form.file: form.render(calibration, serve_program()) for form in forms})
        also += [str(out / form.file) for form in forms]
    if options.as_json:
        print_document(calibration.to_json())
    if not options.quiet:
        summary(calibration, console, serve=served, folder=str(out), seconds=seconds, also=also)
        if words := undrawn_words():
            console.print(words, markup=False, soft_wrap=True)
        if wanting := calibration.needed_variables:
            retry = with_environment(wanting, _repeat_with_variables(command, options))
            console.print(f"{_LEFT_OUT}: {retry}", markup=False, soft_wrap=True)
    if not passes:
        failed = first_failed(calibration.checks)
        if not options.quiet:
            # The summary shows the rest.
            raise VerdictError(f"failed at {failed.code} {failed.name}")
        raise VerdictError(f"failed at {check_line(failed)}", hint=failed.remedy)
    if options.strict and calibration.corpus.skipped:
        raise VerdictError(
            f"--strict: {calibration.corpus.skipped} files or requests were skipped",
            hint=f"see {out / 'skipped.jsonl'}",
        )


def gpu_that_serves(named: gpus.Gpu | str | None) -> gpus.Gpu | None:
    """The given GPU, or the one of this machine; None without either."""
    if named is None and gpus.has_gpu():
        named = AUTO
    return resolve_gpu(named) if isinstance(named, str) else named


COMPARISON = "comparison.json"


def split_price(named: str | None) -> tuple[str | None, float | None]:
    """Split `L4=0.80/h` into the GPU's name and its price per hour. Raises UsageError."""
    name, has_price, words = (named or "").partition("=")
    price = re.fullmatch(r"(\d*\.?\d+)(/h)?", words.strip())
    if has_price and not price:
        message = f"--gpu {named}: {words} is not a price per hour"
        raise UsageError(message, hint=f"--gpu {name}=0.80/h,L40S=1.90/h")
    return name.strip() or named, float(price[1]) if price else None


def split_names(names: str | None) -> list[str | None]:
    """Split a list at commas, without repeats. The name of an existing folder may have commas."""
    if names is None or Path(names).exists():
        return [names]
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip())) or [names]


def compare(
    jobs: Sequence[Job],
    progress: Progress,
    console: Console,
    prices: Mapping[gpus.Gpu | None, float | None],
    out: Path,
    options: ResultOptions,
) -> None:
    """Run the jobs, `finish` each in its folder, and compare. Raises VerdictError if all fail.

    The folders are in `out`. Contexts are as short as the media allow, unless options, file or
    flags set one.
    """
    jobs = [job.with_fitting_context() for job in jobs]
    folders = [out / name for name in _folder_names(jobs)]
    for folder in folders:
        check_output_dir(folder, force=options.force)
    if (out / COMPARISON).exists() and not options.force:
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
                finish(calibration, folder, console, replace(options, as_json=False, quiet=True))
            except VerdictError as error:
                refused = error if row.verdict == "pass" else refused
        else:
            row = ComparedRun.from_error(calibration, job.model, gpu, folder.name)
        row = row.model_copy(update={"price_per_h": prices[job.gpu]})
        found = Comparison(mmcalib=__version__, runs=[*found.runs, row])
        write_text(out / COMPARISON, found.model_dump_json(indent=2) + "\n")
        if not options.quiet:
            ended = f"{len(found.runs)} of {len(jobs)}: {folder.name} {row.verdict.upper()}"
            console.print(ended, markup=False, style="bold")
    if options.as_json:
        print_document(found.model_dump_json(indent=2))
    if not options.quiet:
        print_comparison(found, console)
        console.print(f"Details: {out / COMPARISON}, and a folder for each", markup=False)
    passed = [run for run in found.runs if run.verdict == "pass"]
    if not passed:
        first = found.runs[0]
        raise VerdictError(f"none of {len(jobs)} passed: {first.problem}", hint=first.remedy)
    if not options.quiet:
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
