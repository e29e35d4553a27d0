"""Where vLLM would run, and whether what it resizes and resamples with can be imported."""

from __future__ import annotations

import importlib

import torch

from mmcalib.child.service import root_cause
from mmcalib.engine.messages import Looked
from mmcalib.releases import platform as platforms

LIBRARIES = ("torchvision", "torchaudio")


def look() -> Looked:
    """Takes a CUDA context on a GPU, and nothing else. Raises ImportError where this vLLM lacks
    what mmcalib reaches for.
    """
    importlib.import_module("mmcalib.child.model")
    platform = platforms.current()
    free = total = None
    if platform.is_cuda():
        free, total = torch.cuda.mem_get_info(0)
    return Looked(
        device=platform.device_type or "",
        free_bytes=free,
        total_bytes=total,
        failing={name: why for name in LIBRARIES if (why := _failure(name))},
    )


def _failure(name: str) -> str:
    """Why the library does not import; empty where it does."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a native library fails in ways of its own
        return root_cause(error)
    return ""
