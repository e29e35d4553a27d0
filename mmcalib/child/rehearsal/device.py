"""An imaginary CUDA device: what its operations allocate, and the few values that are known."""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from mmcalib.child.rehearsal.ledger import Ledger
from mmcalib.child.rehearsal.scratch import scratch_bytes
from mmcalib.text import MIB

aten = torch.ops.aten
Operation = Any

_INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}


def without_masks(gpu: ImaginaryGpu, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with every mask of known value turned into positions, as torch does first,
    unless it only fills in a number. An unknown one that picks whole rows to be read lets all
    through: encoders strip padding so, of which the largest item has none.
    """
    if func not in _INDEXED or (len(args) > 2 and _fills(args[2])):
        return args
    indices: list[Any] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
            continue
        mask = gpu.values.of(index)
        if mask is None and func is aten.index.Tensor and index.ndim < args[0].ndim:
            gpu.whole_masks += 1
            mask = torch.ones(index.shape, dtype=torch.bool)
        if mask is None:
            indices.append(index)
        else:
            indices += [gpu.made_of(p, "aten.nonzero") for p in mask.nonzero(as_tuple=True)]
    return (args[0], indices, *args[2:])


def _fills(value: Any) -> bool:
    """`canDispatchToMaskedFill` of aten/src/ATen/native/TensorAdvancedIndexing.cpp."""
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu"


# Not for this way of doing it: another has to.
NOT_ASKED: Final = object()
PINNING = {aten._pin_memory.default, aten.pin_memory.default}


def move(gpu: ImaginaryGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do the operation if it carries data over; NOT_ASKED if it is another kind."""
    if func is aten._local_scalar_dense.default:
        if (value := gpu.values.of(args[0])) is not None:
            return value.item()
        gpu.guesses["item"] += 1
        return 0.0 if args[0].dtype.is_floating_point else 0
    if func is aten._to_copy.default:
        return _to_copy(gpu, args[0], kwargs)
    if func is aten.copy_.default:
        return _copy(gpu, args[0], args[1])
    if func in PINNING or func in (aten.lift_fresh.default, aten.lift.default):
        return args[0]
    return NOT_ASKED


def _to_copy(gpu: ImaginaryGpu, source: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    device = torch.device(kwargs.get("device") or source.device).type
    dtype = kwargs.get("dtype") or source.dtype
    if isinstance(source, FakeTensor):
        if device == source.device.type or device == "meta":
            return NOT_ASKED
        if source.device.type == "cpu":
            return _booked(gpu, gpu.empty_like_of(source, dtype, device), None)
        return _to_host(gpu, source, dtype)
    made = gpu.empty_like_of(source, dtype, device)
    return _booked(gpu, made, source if device == "cuda" else None)


def _booked(gpu: ImaginaryGpu, made: torch.Tensor, value: torch.Tensor | None) -> torch.Tensor:
    if made.device.type == "cuda":
        gpu.ledger.book(made, "aten._to_copy.default")
        if value is not None:
            gpu.values.learn(made, value)
    return made


def _to_host(gpu: ImaginaryGpu, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    value = gpu.values.of(source)
    if value is not None:
        return value.to(dtype).clone()
    if source.numel() * dtype.itemsize > LARGE_HOST_BYTES:
        return gpu.empty_like_of(source, dtype, "cpu")
    if not dtype.is_floating_point:
        gpu.guesses["to host"] += 1
    return torch.zeros(source.size(), dtype=dtype)


def _copy(gpu: ImaginaryGpu, target: torch.Tensor, source: torch.Tensor | float) -> Any:
    if not isinstance(source, torch.Tensor):
        source = torch.tensor(source, dtype=target.dtype)
    if not isinstance(target, FakeTensor):
        value = gpu.values.of(source)
        if value is not None:
            target.copy_(value)
            return target
        # What lies there is nobody's: a buffer that was made for this.
        target.zero_()
        if not target.dtype.is_floating_point:
            gpu.guesses["copy to host"] += 1
        return target
    value = gpu.values.of(source)
    if value is None or not gpu.values.worth_knowing(value):
        gpu.values.forget(target)
        return target
    known = gpu.values.of(target)
    if known is not None:
        known.copy_(value)
    else:
        gpu.values.learn(target, value.expand(target.shape))
    return target


# Token positions and patch grids of the largest items known take about two million entries.
_MOST_BYTES = 32 << 20
# Small enough to compute anything on; above it only whole numbers decide what code does next.
_ANY_DTYPE_BYTES = 1 << 16


class Values:
    """Real host memory behind some fake storages, shared by all tensors that view them."""

    def __init__(self) -> None:
        self._real: dict[int, torch.Tensor] = {}

    def worth_knowing(self, tensor: torch.Tensor) -> bool:
        nbytes = tensor.untyped_storage().nbytes()
        if tensor.is_complex() or nbytes > _MOST_BYTES:
            return False
        return nbytes <= _ANY_DTYPE_BYTES or not tensor.dtype.is_floating_point

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value, of a fake one as a view that its aliases share; None where it is unknown."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        if (flat := self._real.get(tensor.untyped_storage()._cdata)) is None:
            return None
        typed = flat.view(tensor.dtype)
        return typed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def learn(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        """From now on the fake tensor holds a copy of this value, if it is worth knowing."""
        if not self.worth_knowing(fake):
            return
        mine = self.of(fake)
        if mine is None:
            storage = fake.untyped_storage()
            if storage.nbytes() != fake.numel() * fake.element_size():
                return
            key = storage._cdata
            self._real[key] = torch.zeros(storage.nbytes(), dtype=torch.uint8)
            weakref.finalize(storage, self._real.pop, key, None).atexit = False
            mine = self.of(fake)
        if mine is not None:
            mine.copy_(value)

    def forget(self, fake: torch.Tensor) -> None:
        """Something unknown was written to it: no alias knows its value any more."""
        self._real.pop(fake.untyped_storage()._cdata, None)


# c10::impl::device_guard_impl_registry, one pointer per device type; c10/core/DeviceType.h.
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA, _META, _DEVICE_TYPES = 1, 14, 22


@cache
def ensure() -> None:
    """Give CUDA a guard that does nothing. Raises RuntimeError where this torch keeps it elsewhere.

    A CPU build has none, and a CUDA build's asks the driver which device is current. None can be
    registered from Python: CUDA is lent the one of the `meta` device, which does nothing.
    """
    # Before torch 2.11 a CUDA build sets its own when it is imported.
    if hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        torch._C._ensureCUDADeviceGuardSet()
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        slots = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"torch {torch.__version__} keeps device guards elsewhere") from error
    slots[_CUDA] = slots[_META]


class NoFakeImplementation(RuntimeError):  # noqa: N818 - what happened, not what kind
    """An operation without a fake implementation, named with the module that called it."""

    def __init__(self, operation: str, module: str, why: str) -> None:
        self.operation = operation
        where = f" (in {module})" if module else ""
        super().__init__(f"{operation} has no fake implementation{where}: {why}")


# Host tensors above it are fake too: a profile's pixels take gigabytes, and only shapes matter.
LARGE_HOST_BYTES = 32 * MIB
# Attention picks its kernel by device inside C++; its fake result is one tensor, as with flash.
_WHOLE = {aten.scaled_dot_product_attention.default}
# Fresh memory of a device holds zeros, or what nobody may rely on.
_EMPTIES = ("aten::empty", "aten::new_empty")
_FRESH_BYTES = MIB
_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_addmm_activation", "convolution"}
_HOST_BUFFERS = {aten.zeros.default, aten.empty.memory_format}
_TORCH = ("aten", "prims", "prim")
_COMPOSITE = (torch._C.DispatchKey.CompositeImplicitAutograd,)
# Operations that vLLM wrote in Python, and collectives; others may be compiled for a driver.
_RUN_AS_THEY_ARE = ("vllm", "c10d")
_WRITTEN_IN_PYTHON = (
    *(torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CompositeExplicitAutograd),
    *_COMPOSITE,
)
_DEVICE_ERRORS = (
    *(UnsupportedOperatorException, DynamicOutputShapeException, DataDependentOutputException),
    NotImplementedError,
)

# The fake mode has rules of its own for these, which differ where sizes are unknown.
_ALIKE_WITH_KNOWN_SIZES: Final = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.slice.Tensor,
    aten.select.int,
}
# Of a device that is named, or of values.
_OTHERS: Final = {torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded}


class MetaKernels:
    """Results on the imaginary GPU of operations of which torch's meta kernels know all, with the
    shapes, strides and aliases that the fake mode gives after much that is for tracing.

    Answers where every tensor of an operation is a fake one on that GPU and torch has a meta kernel
    and no rule beside it.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._knows: dict[Operation, bool] = {}

    def result(
        self, func: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], flat: Sequence[Any]
    ) -> Any:
        """`flat` are the leaves of both; NOT_ASKED where the fake mode must."""
        knows = self._knows.get(func)
        if knows is None:
            knows = self._knows[func] = _known(func)
        if not knows or "device" in kwargs:
            return NOT_ASKED
        device = None
        for leaf in flat:
            if isinstance(leaf, torch.Tensor):
                if not isinstance(leaf, FakeTensor) or leaf.constant is not None:
                    return NOT_ASKED
                if device is None:
                    device = leaf.fake_device
                elif leaf.fake_device != device:
                    return NOT_ASKED
        if device is None or device.type != "cuda":
            return NOT_ASKED
        try:
            with in_kernel_invocation_manager(self._fake):
                made = func(*args, **kwargs)
        except NotImplementedError:
            return NOT_ASKED
        if isinstance(made, torch.Tensor):
            return self._on(device, made)
        return tree_map_only(torch.Tensor, lambda one: self._on(device, one), made)

    def _on(self, device: torch.device, made: torch.Tensor) -> FakeTensor:
        """What was written to is what was given."""
        return made if isinstance(made, FakeTensor) else FakeTensor(self._fake, made, device)


def _known(func: Operation) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    if _OTHERS & set(func.tags):
        return False
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta"):
        return False
    if func in _ALIKE_WITH_KNOWN_SIZES:
        return True
    return not any(applies(func) for applies, _ in op_implementations_checks)


class ImaginaryGpu(TorchDispatchMode):  # type: ignore[misc] # torch is not followed
    """While entered, every operation on a `cuda` tensor is booked instead of computed.

    Host tensors stay real, except large ones. Where code asks for a value that nobody knows it
    gets zero, and `guesses` counts it by operation; a mask of rows that nobody knows lets all
    through, and `whole_masks` counts those.
    """

    def __init__(
        self, ledger: Ledger, on_matmul: Callable[[Operation], None] = lambda operation: None
    ) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.ledger = ledger
        self.guesses: Counter[str] = Counter()
        self.clear(on_matmul)
        self._meta_kernels = MetaKernels(self.fake)
        self._kernels: dict[Operation, Any] = {}
        self._lift_before: list[bool] = []

    def clear(self, on_matmul: Callable[[Operation], None]) -> None:
        """Forget values and guesses; matrix products are told to another from now on."""
        self.values = Values()
        self.guesses.clear()
        self.whole_masks = 0
        self._on_matmul = on_matmul

    def __enter__(self) -> ImaginaryGpu:
        ensure()
        self._lift_before.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lift_before.pop())

    def __torch_dispatch__(
        self,
        func: Operation,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        flat = tree_leaves((args, kwargs))
        fakes = [one for one in flat if isinstance(one, FakeTensor)]
        if func is torch.ops.prim.device.default:
            return args[0].fake_device if fakes else func(*args)
        key = self._kernel_in_parts(func)
        if any(isinstance(one, torch.device) and one.type == "cuda" for one in flat):
            args, kwargs = tree_map_only(torch.device, _indexed, (args, kwargs))
        elif not (fakes or _large_host(func, flat, in_parts=key is not None)):
            return _on_host(func, args, kwargs)
        if key is not None:
            with self:
                return func._op_dk(key, *args, **kwargs)
        if "pin_memory" in kwargs:
            kwargs["pin_memory"] = False
        if "generator" in kwargs:
            kwargs["generator"] = None
        moved = move(self, func, args, kwargs)
        if moved is not NOT_ASKED:
            return moved
        given, args = args, without_masks(self, func, args)
        out = self._meta_kernels.result(func, args, kwargs, flat) if args is given else NOT_ASKED
        if out is NOT_ASKED:
            out = self._imagine(func, args, kwargs)
        self._book(func, args, kwargs, out)
        self._echo(func, args, kwargs, out)
        return out

    def empty_like_of(self, real: torch.Tensor, dtype: torch.dtype, device: str) -> torch.Tensor:
        """A fake of the same sizes and strides as a dense real tensor."""
        dense = real if real.is_contiguous() else torch.empty_like(real, device="meta")
        with self.fake:
            made: torch.Tensor = torch.empty_strided(
                real.size(), dense.stride(), dtype=dtype, device=device
            )
        return made

    def made_of(self, value: Any, operation: str) -> Any:
        """Fakes on the device that hold these real tensors' values; other leaves unchanged."""

        def one(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
                return leaf
            made = self.empty_like_of(leaf, leaf.dtype, "cuda")
            self.ledger.book(made, operation)
            self.values.learn(made, leaf)
            return made

        return tree_map(one, value)

    def _kernel_in_parts(self, func: Operation) -> Any:
        """The key of a kernel that runs it as several operations, each then booked by itself.

        Torch's composite kernels, and vLLM's in Python: its fakes hide what kernels allocate.
        """
        if func not in self._kernels:
            keys: tuple[Any, ...] = _COMPOSITE if func.namespace in _TORCH else ()
            if func.namespace.startswith(_RUN_AS_THEY_ARE):
                keys = _WRITTEN_IN_PYTHON
            has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
            found = (key for key in keys if func not in _WHOLE and has_kernel(func.name(), key))
            self._kernels[func] = next(found, None)
        return self._kernels[func]

    def _imagine(self, func: Operation, args: Any, kwargs: Any) -> Any:
        try:
            with self.fake:
                return func(*args, **kwargs)
        except _DEVICE_ERRORS as error:
            value = self._real(func, args, kwargs)
            if value is not None:
                return self.made_of(value, str(func))
            if not func._schema.returns:
                return None
            raise NoFakeImplementation(
                str(func), self.ledger.module, type(error).__name__
            ) from error

    def _book(self, func: Operation, args: Any, kwargs: Any, out: Any) -> None:
        name = func._schema.name.rpartition("::")[2]
        if name in _MATMULS:
            self._on_matmul(func)
        fakes = [one for one in tree_leaves(out) if isinstance(one, FakeTensor)]
        for one in fakes:
            if one.device.type == "cuda":
                self.ledger.book(one, str(func))
        if any(one.device.type == "cuda" for one in fakes):
            self.ledger.scratch(scratch_bytes(name, args, kwargs), str(func))

    def _echo(self, func: Operation, args: Any, kwargs: Any, out: Any) -> None:
        """Do on known values what was done on the fakes; what becomes unknown is forgotten."""
        outs = [one for one in tree_leaves(out) if isinstance(one, FakeTensor)]
        written = list(_written(func, args, kwargs))
        wanted = [one for one in outs if self.values.worth_knowing(one)]
        if func.is_view or not (wanted or written):
            return
        if func._schema.name.startswith(_EMPTIES):
            for one in wanted:
                # Larger ones are packed weights, whose values would be worked on.
                if one.untyped_storage().nbytes() <= _FRESH_BYTES:
                    self.values.learn(one, torch.zeros((), dtype=one.dtype).expand(one.shape))
            return
        value = self._real(func, args, kwargs) if wanted else None
        if value is None:
            for one in written:
                self.values.forget(one)
            return
        for fake, real in zip(tree_leaves(out), tree_leaves(value), strict=False):
            if not isinstance(fake, FakeTensor) or not isinstance(real, torch.Tensor):
                continue
            if real.shape == fake.shape and not any(fake is one for one in written):
                self.values.learn(fake, real)

    def _real(self, func: Operation, args: Any, kwargs: Any) -> Any:
        """The operation's result on the values of its inputs; None where one is unknown."""
        if func.namespace not in ("aten", "prims"):
            return None
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        known = {}
        for one in inputs:
            value = self.values.of(one)
            if value is None or not self.values.worth_knowing(value):
                return None
            known[id(one)] = value

        def real(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return known[id(leaf)]
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        try:
            return func(*tree_map(real, args), **tree_map(real, kwargs))
        except (RuntimeError, NotImplementedError, IndexError):
            return None


def _on_host(func: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
    """The real operation. Large buffers are pages that nobody has touched, until somebody does."""
    kwargs.pop("pin_memory", None)
    if func in PINNING:
        return args[0]
    if func in _HOST_BUFFERS and str(kwargs.get("device") or "cpu") == "cpu":
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        nbytes = prod(args[0]) * dtype.itemsize
        if nbytes > LARGE_HOST_BYTES:
            return torch.from_numpy(np.zeros(nbytes, dtype=np.uint8)).view(dtype).view(args[0])
    return func(*args, **kwargs)


def _indexed(device: torch.device) -> torch.device:
    """The device with its index: C++ would ask the guard for it, which knows of no CUDA."""
    return torch.device("cuda", 0) if device.type == "cuda" else device


def _large_host(func: Operation, flat: Sequence[Any], *, in_parts: bool) -> bool:
    """Whether it may copy a large host tensor; reshaping may, which its parts show."""
    large = any(
        isinstance(one, torch.Tensor)
        and one.numel() * one.element_size() > LARGE_HOST_BYTES
        and one.device.type == "cpu"
        for one in flat
    )
    return large and not func._schema.is_mutable and (in_parts or not func.is_view)


def _written(func: Operation, args: Any, kwargs: Any) -> Any:
    """The fake tensors that the operation writes to, by its schema."""
    if not func._schema.is_mutable:
        return
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[index] if index < len(args) else kwargs.get(argument.name)
        for one in tree_leaves(given):
            if isinstance(one, FakeTensor):
                yield one
