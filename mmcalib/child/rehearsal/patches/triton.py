"""Triton kernels: declared as always, launched as nothing. Their results are given tensors."""

from __future__ import annotations

from typing import Any

from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import targets


class _Launched:
    """What a launch returns; a caller may ask it for a compiled kernel's facts."""

    n_regs = n_spills = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _nothing(self: Any, *args: Any, **kwargs: Any) -> _Launched:
    return _Launched()


def install() -> None:
    """Needs the triton package, which every CUDA build of vLLM brings."""
    for kind in ("jit.JITFunction", "autotuner.Autotuner", "autotuner.Heuristics"):
        for method in ("run", "warmup"):
            replace(targets.triton(f"{kind}.{method}"), _nothing)
    # Nobody asks the driver for devices that are not there.
    replace("triton.runtime.autotuner.Autotuner.__init__", _plain_autotuner)


def _plain_autotuner(self: Any, fn: Any, arg_names: Any, *args: Any, **kwargs: Any) -> None:
    self.fn = self.base_fn = fn
    self.arg_names = arg_names
    self.configs = list(args[0]) if args else []
