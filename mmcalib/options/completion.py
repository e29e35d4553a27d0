"""What the shell offers after an option. Typer keeps what begins with the word that was typed."""

from __future__ import annotations

from collections.abc import Callable


def model_ids() -> list[str]:
    """The bundled models; a folder is for the shell to offer."""
    from mmcalib.models.catalogue import bundled

    return [geometry.id for geometry in bundled()]


def gpu_names() -> list[str]:
    """The GPUs whose startup can be rehearsed, and the present one."""
    from mmcalib.gpus.catalogue import all as every

    return ["auto", *(gpu.name for gpu in every() if gpu.capability and not gpu.memory_only)]


def one_of(*choices: str) -> Callable[[], list[str]]:
    """These words."""
    return lambda: list(choices)
