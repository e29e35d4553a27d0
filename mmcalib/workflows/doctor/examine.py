"""Looks at everything that the main job needs, in a few seconds and without changing anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from mmcalib.checks.check import Check, verdict
from mmcalib.errors import UsageError
from mmcalib.gpus import present
from mmcalib.gpus.gpu import Gpu
from mmcalib.progress import Progress, Silent
from mmcalib.results.doctor import Diagnosis, PresentGpu
from mmcalib.results.part import CheckResult
from mmcalib.sizes import GIB
from mmcalib.version import __version__
from mmcalib.workflows.doctor.engine import ENGINE, EngineProbe, ask, engine_checks
from mmcalib.workflows.doctor.folders import folder_checks, folders
from mmcalib.workflows.doctor.hub import ask_hub, hub_check
from mmcalib.workflows.doctor.machine import host, machine_checks
from mmcalib.workflows.doctor.packages import build_check, media_check, packages, versions

# Three photos for Qwen2.5-VL-3B took 6.8 GiB at their highest: engine on CPU, rehearsal beside.
WANTED_RAM_BYTES = 7 * GIB
# That took 4 MB of results and cache; the census of millions of files and vLLM's logs take more.
WANTED_DISK_BYTES = GIB


def examine(*, env: Mapping[str, str] | None = None, progress: Progress | None = None) -> Diagnosis:
    """Ask vLLM, the hub and the machine; `env` (default: the process environment) is the hub's."""
    env = os.environ if env is None else env
    progress = progress or Silent()
    found = packages()
    here = versions(found)
    gpu = _gpu()
    build = build_check(gpu=gpu is not None)
    # The hub may keep silent for its whole time, which vLLM takes to import anyway.
    with ThreadPoolExecutor(1) as beside, progress.step("asking vLLM and the hub"):
        hub_answer = beside.submit(ask_hub, env)
        asked = EngineProbe(None, "", "", 0.0) if build.status == "fail" else ask()
        hub = hub_answer.result()
    machine, written = host(), folders()
    checks = [
        media_check(),
        build,
        *(engine_checks(asked, here, gpu) if build.status != "fail" else _unasked()),
        hub_check(hub, env),
        *machine_checks(machine, wanted_bytes=WANTED_RAM_BYTES),
        *folder_checks(written, wanted_bytes=WANTED_DISK_BYTES),
    ]
    return Diagnosis(
        mmcalib=__version__,
        packages=found,
        backend=asked.backend(here),
        gpu=_described(gpu, asked),
        hub=hub,
        host=machine,
        folders=written,
        checks=list(map(CheckResult.showing, checks)),
        verdict=verdict(checks),
    )


def _unasked() -> list[Check]:
    return [Check(ENGINE, "skip", "not asked: see vLLM", "")]


def _gpu() -> Gpu | None:
    try:
        return present.present()
    except UsageError:
        return None


def _described(gpu: Gpu | None, asked: EngineProbe) -> PresentGpu | None:
    if gpu is None:
        return None
    major, minor = gpu.capability or (0, 0)
    return PresentGpu(
        name=gpu.name,
        total_bytes=gpu.total_bytes,
        free_bytes=asked.looked.free_bytes if asked.looked else None,
        capability=f"{major}.{minor}",
    )
