"""What changes for a model, a GPU and a configuration with another release of vLLM."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mmcalib.derive.upgrade.figures import release_figures
from mmcalib.domain.release_view import ReleaseView
from mmcalib.engine.interpreter import Interpreter, interpreter
from mmcalib.engine.wheels import BUILDS, installed
from mmcalib.errors import NotMultimodal, UsageError, VllmMissing
from mmcalib.gpus.gpu import Gpu
from mmcalib.models import ResolvedModel, resolve
from mmcalib.progress import Progress, Silent
from mmcalib.result.release_comparison import ComparedFigure, ComparedRelease, ReleaseComparison
from mmcalib.version import __version__
from mmcalib.workflows.config_file import read_configuration
from mmcalib.workflows.memory.figures import rehearsal
from mmcalib.workflows.memory.rehearse import AUTO, gpu_of
from mmcalib.workflows.opening import takes_no_media
from mmcalib.workflows.spec import cache_dir
from mmcalib.workflows.upgrade.shapes import shapes_of
from mmcalib.workflows.upgrade.view import ReleaseProbe

# Interpreters that a comparison takes.
_BOTH = 2


def compare_releases(
    model: str | None,
    pythons: Sequence[str | os.PathLike[str]],
    *,
    gpu: str | Gpu = AUTO,
    data: Sequence[str | Path] = (),
    config: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    progress: Progress | None = None,
) -> ReleaseComparison:
    """The vLLM beside mmcalib before, the one of the interpreter in `pythons` after; or those of
    the two in it. Blank items of the sizes in `data` are measured, of usual ones without.
    `config` and `flags` are as for `rehearse`. Raises `MmcalibError`.
    """
    progress = progress or Silent()
    where = _installations(pythons)
    written = read_configuration(None if config is None else Path(config), flags, model)
    path, named = written.source, written.named_model
    if named is None:
        raise UsageError("no model is named", hint="--model MODEL, or `model:` in --config")
    found = gpu_of(gpu) if isinstance(gpu, str) else gpu
    resolved = resolve(named, cache_dir=cache_dir())
    shapes = shapes_of(data, progress)
    try:
        before, after = (
            ReleaseProbe(one, found, shapes, progress).view(resolved, written) for one in where
        )
    except NotMultimodal:
        raise takes_no_media(resolved) from None
    return ReleaseComparison(
        model=resolved.id,
        source=resolved.source,
        config="" if path is None else str(path),
        flags=list(flags),
        gpu=found.name,
        mmcalib=__version__,
        before=_shown(before, resolved, found, path),
        after=_shown(after, resolved, found, path),
        figures=[ComparedFigure.showing(figure) for figure in release_figures(before, after)],
    )


def _installations(pythons: Sequence[str | os.PathLike[str]]) -> list[Interpreter]:
    if not 1 <= len(pythons) <= _BOTH:
        raise UsageError("two installations are compared, no more", hint="--python once, or twice")
    others = [interpreter(python) for python in pythons]
    return others if len(others) == _BOTH else [_own(), *others]


def _own() -> Interpreter:
    """The installation beside mmcalib. Raises VllmMissing where there is none."""
    version = next(filter(None, map(installed, BUILDS)), None)
    if version is None:
        raise VllmMissing(hint="--python twice compares two others")
    return Interpreter(sys.executable, "", version)


def _shown(
    view: ReleaseView, model: ResolvedModel, gpu: Gpu, config: Path | None
) -> ComparedRelease:
    found = view.rehearsed
    return ComparedRelease(
        vllm=view.vllm,
        python=view.python,
        versions={} if view.opened is None else dict(view.opened.versions),
        refused={} if view.serve is None else dict(view.serve.refused),
        problems=list(view.problems),
        rehearsal=None if found is None else rehearsal(found, model, gpu, config),
    )
