"""vLLM's compiled CUDA operations, of which only their results' shapes are needed.

Those with results get them from vLLM's own fake implementations; those that write into tensors
they are given do nothing. Any other is refused by name.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from mmcalib.child.rehearsal.device.errors import NoFakeImplementation
from mmcalib.child.rehearsal.device.scratch import radix_sort_scratch_bytes
from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases.operations import (
    EXTENSIONS,
    MEMORY_ALLOCATOR,
    NAMESPACES,
    OUTPUTS,
    WRITE_ONLY,
    YES,
)

# Questions to the compiled kernels, answered from the imaginary GPU where it matters.
_MAX_SHARED_MEMORY_BYTES = 227 << 10


def _into_what_is_given(*args: Any, **kwargs: Any) -> None:
    """An overload `out`: its results are tensors of the caller's."""


class Operation:
    """One compiled operation under any of its overloads; `out` writes to what it is given."""

    def __init__(self, name: str, module: Callable[[], str]) -> None:
        self.name = name
        self.fake: Callable[..., Any] | None = None
        self._module = module
        self.default = self
        self.out = _into_what_is_given

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.name.partition("::")[2]
        given = args[OUTPUTS[name]] if name in OUTPUTS and len(args) > OUTPUTS[name] else None
        if given is not None:
            return given
        if self.fake is not None:
            return self.fake(*args, **kwargs)
        if name in WRITE_ONLY:
            return None
        why = "vLLM describes no result for it; another --linear-backend or --moe-backend may do"
        raise NoFakeImplementation(self.name, self._module(), f"{why} without it")


class _Namespace:
    """`torch.ops._C` and its like: every name is an operation."""

    def __init__(self, name: str, module: Callable[[], str]) -> None:
        self._name, self._module = name, module

    def __getattr__(self, name: str) -> Operation:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Operation(f"{self._name}::{name}", self._module)
        setattr(self, name, made)
        return made


def install(module: Callable[[], str]) -> None:
    """Take the place of the compiled extensions. `module` says which part of the model is at work.

    Must come before vLLM registers its fake implementations.
    """
    for extension in EXTENSIONS:
        sys.modules[extension] = types.ModuleType(extension)
    # Imported by name where vLLM's sleep mode is, which a rehearsal never is in.
    for name in ("init_module", "python_create_and_map", "python_unmap_and_release"):
        setattr(sys.modules[MEMORY_ALLOCATOR], name, None)
    spaces = {name: _Namespace(name, module) for name in NAMESPACES}
    for name, space in spaces.items():
        setattr(torch.ops, name, space)
    _answers(spaces["_C_cuda_utils"])
    for name in YES:
        getattr(spaces["_moe_C"], name).fake = lambda *args: True
    # Experts of tokens and their rows, int32 both.
    spaces["_moe_C"].moe_permute_sort_workspace_size.fake = lambda rows, experts: (
        radix_sort_scratch_bytes(rows, 4, 4)
    )
    register = torch.library.register_fake

    def register_fake(op: Any, func: Any = None, /, **kwargs: Any) -> Any:
        space, _, name = op.partition("::") if isinstance(op, str) else ("", "", "")
        if space not in spaces:
            return register(op, func, **kwargs)
        operation = getattr(spaces[space], name.removesuffix(".default"))

        def keep(implementation: Any) -> Any:
            operation.fake = implementation
            return implementation

        return keep if func is None else keep(func)

    replace("torch.library.register_fake", register_fake)


def _answers(space: _Namespace) -> None:
    answer = space.get_max_shared_memory_per_block_device_attribute
    answer.fake = lambda device: _MAX_SHARED_MEMORY_BYTES
