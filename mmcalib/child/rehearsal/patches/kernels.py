"""Custom operations, experts.

vLLM's compiled CUDA operations, of which only their results' shapes are needed.

Those with results get them from vLLM's own fake implementations; those that write into tensors
they are given do nothing. Any other is refused by name.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from mmcalib.child.rehearsal.device import NoFakeImplementation
from mmcalib.child.rehearsal.ledger import Ledger
from mmcalib.child.rehearsal.patches.patching import find, replace
from mmcalib.child.rehearsal.scratch import radix_sort_scratch_bytes
from mmcalib.releases import targets
from mmcalib.releases.release import TargetMoved
from mmcalib.releases.targets import (
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


def install_operations(module: Callable[[], str]) -> None:
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


# The least compute capability for which vLLM's CUTLASS kernels exist, as its documentation of
# quantization says (FP8 from Ada, block FP8 and grouped from Hopper, FP4 from Blackwell); not read
# in the kernels' source.
_SUPPORTED_FROM = {
    "cutlass_scaled_mm_supports_fp8": 89,
    "cutlass_scaled_mm_supports_block_fp8": 90,
    "cutlass_group_gemm_supported": 90,
    "cutlass_scaled_mm_supports_fp4": 100,
    "mxfp4_experts_quant_supported": 100,
}


def install_kernels(ledger: Ledger, capability: tuple[int, int]) -> None:
    """Answer questions of support, and lend host memory to the device for nothing."""
    number = capability[0] * 10 + capability[1]
    for name, least in _SUPPORTED_FROM.items():
        replace(targets.custom_ops(name), lambda asked, yes=number >= least: yes)

    def device_view(host: torch.Tensor) -> torch.Tensor:
        """Pinned host memory seen from the device: takes nothing there."""
        view = torch.empty_like(host, device="cuda")
        ledger.exempt(view)
        return view

    replace(targets.DEVICE_VIEW, device_view)
    # Last, since it brings much of vLLM along. Launched to be compiled and tuned, which a driver
    # would be asked for.
    replace(targets.WARMUP, lambda worker: None)


_Prepare = Callable[..., tuple[torch.Tensor, ...]]


def install_experts() -> None:
    """Where a layer's experts are packed for Marlin one by one, which is tens of thousands of
    operations: minutes on a device that keeps books of each.
    """
    for target in targets.PACKED_ONE_BY_ONE:
        try:
            holder, name = find(target.name)
        except TargetMoved:
            if not target.may_be_missing:
                raise
            continue
        replace(target, for_one(getattr(holder, name)))


def for_one(prepare: _Prepare) -> _Prepare:
    """`prepare` as it is for the first expert, and its results as large as they are for all."""

    @functools.wraps(prepare)
    def prepared(layer: Any, *given: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        count = layer.num_experts

        def first(value: Any) -> Any:
            by_expert = isinstance(value, torch.Tensor) and value.shape[:1] == (count,)
            return value[:1] if by_expert else value

        layer.num_experts = 1
        try:
            one = prepare(
                layer, *map(first, given), **{name: first(value) for name, value in named.items()}
            )
        finally:
            layer.num_experts = count
        return tuple(part.new_empty((count, *part.shape[1:])) for part in one)

    return prepared
