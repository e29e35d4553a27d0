"""Lets vLLM import where CPU-only torch stands beside CUDA-built torchvision or torchaudio.

Put on PYTHONPATH of the engine child, and so reaches every process that vLLM starts itself. On a
machine whose wheels match it changes nothing. The next `sitecustomize` on the path still runs.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _mismatched(package: str) -> bool:
    """Whether the package was built for another torch than the CPU-only one that is here."""
    found = _version(package)
    return "+cpu" in _version("torch") and bool(found) and "+cpu" not in found


class _DefineOpsBeforeTorchvision(importlib.abc.MetaPathFinder):
    """The Python side of torchvision needs two schemas that its library cannot load to give."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for op in ("nms", "qnms"):
                library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            # Kept alive: the schemas go when the library object does.
            torch.library._mmcalib_torchvision_ops = library


for _package in ("torchaudio", "torchcodec"):
    if _mismatched(_package):
        sys.modules[_package] = None  # type: ignore[assignment] # Python: import fails
if _mismatched("torchvision"):
    sys.meta_path.insert(0, _DefineOpsBeforeTorchvision())

_others = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
