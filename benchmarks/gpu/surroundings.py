"""The environment that vLLM needs where nothing but the GPU is: no network, no hub, own caches."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from mmcalib import version

# Where container runtimes mount the driver without telling the loader.
DRIVER = Path("/usr/local/nvidia")
LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # A plan of an earlier start would take the place of its measurements.
    "VLLM_ENABLE_STARTUP_PLAN": "0",
}
CACHES = {
    "VLLM_CACHE_ROOT": "vllm-cache",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}
RUNNERS = {"v1": "0", "v2": "1"}


def vllm_version() -> str:
    """Of the vLLM that is installed; ends the program where there is none."""
    if (found := version.vllm_version()) is None:
        sys.exit(f"{Path(sys.argv[0]).stem}: vLLM is not installed for this Python")
    return found


def prepare(runner: str) -> None:
    """Set what is not set, for this process and its children. Starts the program again where the
    driver's libraries are not on the loader's path.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    for name, folder in CACHES.items():
        os.environ.setdefault(name, str(Path(tempfile.gettempdir()) / folder))
    if importlib.util.find_spec("flashinfer") is None:
        # The rehearsal must not sample with what the start does not have.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if runner in RUNNERS:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = RUNNERS[runner]
    missing = [name for name in LIBRARIES if not _loads(name)]
    folders = {str(path.parent) for name in missing for path in DRIVER.rglob(name)}
    path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if folders - set(path):
        os.environ["LD_LIBRARY_PATH"] = ":".join([*sorted(folders), *filter(None, path)])
        os.execv(sys.executable, [sys.executable, *sys.argv])


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
