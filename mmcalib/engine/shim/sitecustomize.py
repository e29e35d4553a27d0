"""Let the engine child import the mmcalib that started it, and vLLM despite mismatched wheels.

Wheels mismatch if torch is CPU-only and torchvision or torchaudio is built for CUDA. Only their
native libraries fail then; the Python code that vLLM uses to resize and resample works. With
matching wheels this module changes nothing. It is on PYTHONPATH of the engine child and so reaches
every process of vLLM. The next `sitecustomize` on the path still runs.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable

_HERE = os.path.dirname(os.path.abspath(__file__))
_MMCALIB = os.path.dirname(os.path.dirname(_HERE))


class _Ours(importlib.abc.MetaPathFinder):
    """Finds only mmcalib in its folder; other names there would shadow Python's own modules."""

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != os.path.basename(_MMCALIB):
            return None
        return importlib.machinery.PathFinder.find_spec(name, [os.path.dirname(_MMCALIB)])


class _Before(importlib.abc.MetaPathFinder):
    """Calls `act` once, just before Python finds the module `name`."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == self._name:
            sys.meta_path.remove(self)
            self._act()


def _declare_torchvision_ops() -> None:
    """Define the two schemas that torchvision's Python code needs from its native library."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for op in ("nms", "qnms"):
        library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    # The schemas disappear with the library object, so keep it.
    torch.library._mmcalib_torchvision_ops = library


def _replace_torchaudio_extension() -> None:
    """Give torchaudio the `_extension` module of its builds without a native library."""
    extension = types.ModuleType("torchaudio._extension")
    extension._IS_TORCHAUDIO_EXT_AVAILABLE = False  # type: ignore[attr-defined]
    extension._IS_ALIGN_AVAILABLE = False  # type: ignore[attr-defined]
    extension.fail_if_no_align = lambda function: function  # type: ignore[attr-defined]
    sys.modules["torchaudio._extension"] = extension


sys.meta_path.insert(0, _Ours())

from mmcalib.version import is_mismatched  # noqa: E402 - the finder above must come first

if is_mismatched("torchvision"):
    sys.meta_path.insert(0, _Before("torchvision", _declare_torchvision_ops))
if is_mismatched("torchaudio"):
    sys.meta_path.insert(0, _Before("torchaudio", _replace_torchaudio_extension))
if is_mismatched("torchcodec"):
    sys.modules["torchcodec"] = None  # type: ignore[assignment] # makes its import fail

_others = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
