"""Whether a configuration that somebody wrote does what it says: its file, limits and engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mmcalib.engine.config_forms import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.errors import CorpusError, UsageError
from mmcalib.gpus.gpu import Gpu
from mmcalib.locations.domains import allowing
from mmcalib.options.option import checked
from mmcalib.options.validate import STARTUP_BUDGET_S, Depth, ProofOptions
from mmcalib.progress import Progress, StepLog
from mmcalib.results.validation import Validation
from mmcalib.scratch import Scratch
from mmcalib.workflows.memory.rehearse import gpu_of
from mmcalib.workflows.validate.concluded import concluded
from mmcalib.workflows.validate.document import judged, refused, unread
from mmcalib.workflows.validate.examined import examine
from mmcalib.workflows.validate.items import read_media
from mmcalib.workflows.validate.opened import RefusedConfig, find_model, memory_of, open_config
from mmcalib.workflows.validate.reading import UnreadableConfig, read_file
from mmcalib.workflows.validate.spec import Media, ValidateJob, ValidateSession
from mmcalib.workflows.validate.tried import try_config


def validate(
    config: str | os.PathLike[str] | None = None,
    *,
    model: str | None = None,
    data: Sequence[str | os.PathLike[str]] = (),
    requests: Sequence[str | os.PathLike[str]] = (),
    allowed_local_media_path: str | os.PathLike[str] | None = None,
    allowed_media_domains: Sequence[str] = (),
    gpu: str | Gpu | None = None,
    flags: Sequence[str] = (),
    validate: Depth = "replay",
    startup_budget_s: float = STARTUP_BUDGET_S,
    progress: Progress | None = None,
) -> Validation:
    """Judge a configuration: a file that holds one in any form, `flags` of `vllm serve`, or both.

    `data` and `requests` are what will be served; without them made-up items stand for it. `gpu` is
    the one that will serve, whose memory is then rehearsed. Raises `mmcalib.errors.MmcalibError`
    where there is nothing to judge.
    """
    proof = checked(ProofOptions, {"validate": validate, "startup_budget_s": startup_budget_s})
    root = Path(allowed_local_media_path) if allowed_local_media_path else None
    written = read_configuration(Path(config) if config else None, flags, model)
    if written.source is None and not written.flags and model is None:
        raise UsageError(
            "nothing to validate: neither a file nor flags", hint="mmcalib validate engine.yaml"
        )
    job = ValidateJob(
        config=written.source,
        flags=written.flags,
        model=written.model,
        media=Media(tuple(map(Path, data)), tuple(map(Path, requests)), root),
        gpu=gpu_of(gpu) if isinstance(gpu, str) else gpu,
        depth=proof.validate,
        startup_budget_s=proof.startup_budget_s,
    )
    for option, path in [*(("data", p) for p in data), *(("requests", p) for p in requests)]:
        if not os.path.exists(path):
            raise CorpusError(
                f"--{option} {path}: no such file or folder",
                hint=f"ls {os.path.dirname(path) or '.'}",
            )
    progress = progress or StepLog()
    with (
        allowing(allowed_media_domains),
        EngineHost(on_said=progress.note, on_log=progress.log) as host,
    ):
        return judge(job, host, progress)


def judge(job: ValidateJob, host: EngineHost, progress: Progress) -> Validation:
    """The same in an engine process that is there already; a start leaves its engine in it."""
    with Scratch() as scratch:
        session = ValidateSession(job, host, scratch.path, progress)
        config = read_file(session)
        if isinstance(config, UnreadableConfig):
            return unread(job, config)
        corpus = read_media(job.media, progress) if job.media.given else None
        resolved = find_model(session, config)
        with memory_of(session, config, resolved) as memory:
            opened = open_config(session, config, resolved, memory)
            if isinstance(opened, RefusedConfig):
                return refused(job, config, opened)
            examined = examine(session, config, opened, corpus)
            before = (*config.checks, *opened.checks, *examined.checks)
            tried = try_config(session, examined, before)
            name = str(job.config or "FILE")
            checks = concluded((*before, *tried.checks), tried, examined.memory, name)
            return judged(job, config, examined, tried, checks)
