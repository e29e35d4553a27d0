"""An imaginary CUDA device: it records what operations allocate, and knows a few small values."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final

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
    *(aten.index.Tensor, aten.index_put.default),
    *(aten.index_put_.default, aten._index_put_impl_.default),
}


def masks_to_indices(gpu: ImaginaryGpu, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with known masks turned into positions, as torch does first.

    torch does not if the mask only fills in a number. An unknown mask that selects whole rows to
    read selects all rows: encoders strip padding that way, and the largest item is not padded.
    """
    if func not in _INDEXED:
        return args
    # `canDispatchToMaskedFill` of aten/src/ATen/native/TensorAdvancedIndexing.cpp.
    value = args[2] if len(args) > 2 else None
    if value is not None and value.numel() == 1 and value.device.type == "cpu":
        return args
    indices: list[Any] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
            continue
        mask = gpu.values.get(index)
        if mask is None and func is aten.index.Tensor and index.ndim < args[0].ndim:
            gpu.whole_masks += 1
            mask = torch.ones(index.shape, dtype=torch.bool)
        if mask is None:
            indices.append(index)
        else:
            indices += [gpu.to_fakes(p, "aten.nonzero") for p in mask.nonzero(as_tuple=True)]
    return (args[0], indices, *args[2:])


# Returned by a function that does not handle the operation.
NOT_HANDLED: Final = object()
PINNING = {aten._pin_memory.default, aten.pin_memory.default}


def move_data(gpu: ImaginaryGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do the operation if it moves data between devices; otherwise return NOT_HANDLED."""
    if func is aten._local_scalar_dense.default:
        if (value := gpu.values.get(args[0])) is not None:
            return value.item()
        gpu.guesses["item"] += 1
        return 0.0 if args[0].dtype.is_floating_point else 0
    if func is aten._to_copy.default:
        return _to_copy(gpu, args[0], kwargs)
    if func is aten.copy_.default:
        return _copy(gpu, args[0], args[1])
    if func in PINNING or func in (aten.lift_fresh.default, aten.lift.default):
        return args[0]
    return NOT_HANDLED


def _to_copy(gpu: ImaginaryGpu, source: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    device = torch.device(kwargs.get("device") or source.device).type
    dtype = kwargs.get("dtype") or source.dtype
    is_fake = isinstance(source, FakeTensor)
    if is_fake and device in (source.device.type, "meta"):
        return NOT_HANDLED
    if is_fake and source.device.type != "cpu":
        return _to_host(gpu, source, dtype)
    copy = gpu.fake_like(source, dtype, device)
    if device == "cuda":
        gpu.ledger.book(copy, "aten._to_copy.default")
        if not is_fake:
            gpu.values.store(copy, source)
    return copy


def _to_host(gpu: ImaginaryGpu, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    value = gpu.values.get(source)
    if value is not None:
        return value.to(dtype).clone()
    if source.numel() * dtype.itemsize > LARGE_HOST_BYTES:
        return gpu.fake_like(source, dtype, "cpu")
    if not dtype.is_floating_point:
        gpu.guesses["to host"] += 1
    return torch.zeros(source.size(), dtype=dtype)


def _copy(gpu: ImaginaryGpu, target: torch.Tensor, source: torch.Tensor | float) -> Any:
    if not isinstance(source, torch.Tensor):
        source = torch.tensor(source, dtype=target.dtype)
    value = gpu.values.get(source)
    if not isinstance(target, FakeTensor):
        if value is not None:
            return target.copy_(value)
        if not target.dtype.is_floating_point:
            gpu.guesses["copy to host"] += 1
        # The target is a buffer made for this copy, so its old values do not matter.
        return target.zero_()
    if value is None or not gpu.values.worth_knowing(value):
        gpu.values.drop(target)
    elif (target_value := gpu.values.get(target)) is not None:
        target_value.copy_(value)
    else:
        gpu.values.store(target, value.expand(target.shape))
    return target


# Token positions and patch grids of the largest known items have about two million entries.
_MAX_BYTES = 32 << 20
# Below this, values of any dtype are kept; above it only integers, which control what code does.
_ANY_DTYPE_BYTES = 1 << 16


class Values:
    """Real values of some fake storages, in host memory, shared by all tensors that view them."""

    def __init__(self) -> None:
        self._real: dict[int, torch.Tensor] = {}

    def worth_knowing(self, tensor: torch.Tensor) -> bool:
        nbytes = tensor.untyped_storage().nbytes()
        if tensor.is_complex() or nbytes > _MAX_BYTES:
            return False
        return nbytes <= _ANY_DTYPE_BYTES or not tensor.dtype.is_floating_point

    def get(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor's value (a view shared by aliases of a fake tensor); None if unknown."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        if (flat := self._real.get(tensor.untyped_storage()._cdata)) is None:
            return None
        typed = flat.view(tensor.dtype)
        return typed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def store(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        if not self.worth_knowing(fake):
            return
        stored = self.get(fake)
        if stored is None:
            storage = fake.untyped_storage()
            if storage.nbytes() != fake.numel() * fake.element_size():
                return
            key = storage._cdata
            self._real[key] = torch.zeros(storage.nbytes(), dtype=torch.uint8)
            weakref.finalize(storage, self._real.pop, key, None).atexit = False
            stored = self.get(fake)
        if stored is not None:
            stored.copy_(value)

    def drop(self, fake: torch.Tensor) -> None:
        """Drop the value, also for aliases, because something unknown was written to it."""
        self._real.pop(fake.untyped_storage()._cdata, None)

    def drop_large(self, fake: torch.Tensor) -> None:
        """Drop the value unless it is so small that code may branch on it, such as a scale."""
        if fake.untyped_storage().nbytes() > _ANY_DTYPE_BYTES:
            self.drop(fake)


# c10::impl::device_guard_impl_registry, one pointer per device type; c10/core/DeviceType.h.
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA, _META, _DEVICE_TYPES = 1, 14, 22


@cache
def ensure_device_guard() -> None:
    """Give CUDA a device guard that does nothing. Raises RuntimeError if torch changed its place.

    A CPU build of torch does not register a guard for CUDA, and that of a CUDA build asks the
    driver for the current device. Python cannot register one, so CUDA gets the idle one of `meta`.
    """
    # Before torch 2.11 a CUDA build sets its guard when torch is imported.
    if hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        torch._C._ensureCUDADeviceGuardSet()
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        slots = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    except (OSError, ValueError) as error:
        version = torch.__version__
        raise RuntimeError(f"mmcalib finds no device guards in torch {version}") from error
    slots[_CUDA] = slots[_META]


class NoFakeImplementation(RuntimeError):  # noqa: N818 - named after the event
    """An operation without a fake implementation; the message names the calling module."""

    def __init__(self, operation: str, module: str, why: str) -> None:
        where = f" (in {module})" if module else ""
        super().__init__(f"{operation} has no fake implementation{where}: {why}")


# Larger host tensors are fake too: a profile's pixels take gigabytes, and only shapes matter.
LARGE_HOST_BYTES = 32 * MIB
# Linux's MAP_NORESERVE, which the module names since Python 3.13.
_UNRESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
# Attention picks its kernel in C++ by device; its fake result is one tensor, like flash's.
_WHOLE = {aten.scaled_dot_product_attention.default}
# Code may not rely on the values of fresh memory, so they are zeros here.
_EMPTIES = ("aten::empty", "aten::new_empty")
_FRESH_BYTES = MIB
_HOST_BUFFERS = {aten.zeros.default, aten.empty.memory_format}
_TORCH = ("aten", "prims", "prim")
_COMPOSITE = (torch._C.DispatchKey.CompositeImplicitAutograd,)
# vLLM's operations in Python, and collectives; other operations may need a driver.
_RUN_AS_THEY_ARE = ("vllm", "c10d")
_WRITTEN_IN_PYTHON = (
    *(torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CompositeExplicitAutograd),
    *_COMPOSITE,
)
_DEVICE_ERRORS = (
    *(UnsupportedOperatorException, DynamicOutputShapeException, DataDependentOutputException),
    NotImplementedError,
)

# The fake mode has its own rules for these; they differ only for unknown sizes.
_VIEWS: Final = {aten.view.default, aten._unsafe_view.default, aten.slice.Tensor, aten.select.int}
# Torch's meta kernel for it runs its 200 operations in Python, for the shape of one result.
_SAMPLERS: Final = {aten.grid_sampler_2d.default, aten.grid_sampler_3d.default}
# Operations with these tags depend on more than their arguments' shapes.
_EXCLUDED_TAGS: Final = {torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded}
# About 50 MB of keys.
_MOST_LAYOUTS: Final = 1 << 16
_DATA_TAGS: Final = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


def _sampled(source: Any, grid: Any, *_: Any) -> Any:
    """Return a tensor as the CUDA kernel allocates it (torch's GridSampler.cu)."""
    return source.new_empty((*source.shape[:2], *grid.shape[1:-1]))


@cache
def _has_plain_meta_kernel(func: Operation) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta")
    if _EXCLUDED_TAGS & set(func.tags) or not has_kernel:
        return False
    return func in _VIEWS or not any(applies(func) for applies, _ in op_implementations_checks)


@cache
def _makes_new_tensors(func: Operation) -> bool:
    """Return True if it only makes new tensors, laid out by the layouts of its arguments."""
    # Of these, `_unsafe_view` does not say that it is a view.
    is_plain = isinstance(func, torch._ops.OpOverload) and func not in _VIEWS
    if not is_plain or func.namespace != "aten":
        return False
    returns = func._schema.returns
    aliases = any(one.alias_info for one in (*func._schema.arguments, *returns))
    only_tensors = {str(one.type) for one in returns} == {"Tensor"}
    return only_tensors and not aliases and not _DATA_TAGS & set(func.tags)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.dtype


def _described(argument: Any) -> Any:
    """Return a key of all that layouts of results depend on."""
    if isinstance(argument, torch.Tensor):
        return _layout(argument)
    if isinstance(argument, list | tuple):
        return tuple(map(_described, argument))
    return type(argument), argument


def _only_device(flat: Sequence[Any]) -> torch.device | None:
    """Return the CUDA device of the tensors if they are fakes of one, without a value."""
    tensors = (leaf for leaf in flat if isinstance(leaf, torch.Tensor))
    plain = (isinstance(t, FakeTensor) and t.constant is None and t.fake_device for t in tensors)
    devices = set(plain)
    device = devices.pop() if len(devices) == 1 else None
    return device if device and device.type == "cuda" else None


class ImaginaryGpu(TorchDispatchMode):  # type: ignore[misc] # torch is not followed
    """While entered, records the memory of operations on `cuda` tensors instead of computing them.

    Host tensors stay real, except large ones. Code that reads an unknown value gets zero;
    `guesses` counts these by operation. `whole_masks` counts unknown masks, which select all rows.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.ledger = ledger
        self.guesses: Counter[str] = Counter()
        # Layers repeat operations, and torch computes the layouts of their results in Python.
        self._layouts: dict[Any, list[tuple[Any, ...]]] = {}
        self.clear(lambda name: None)
        self._lift_before: list[bool] = []

    def clear(self, on_aten: Callable[[str], None]) -> None:
        """Forget values and guesses, and report the names of aten's operations from now on."""
        self.values = Values()
        self.guesses.clear()
        self.whole_masks = 0
        self._on_aten = on_aten

    def __enter__(self) -> ImaginaryGpu:
        ensure_device_guard()
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
        fakes = [leaf for leaf in flat if isinstance(leaf, FakeTensor)]
        if func is torch.ops.prim.device.default:
            return args[0].fake_device if fakes else func(*args)
        key = _composite_kernel_key(func)
        if any(isinstance(leaf, torch.device) and leaf.type == "cuda" for leaf in flat):
            # C++ would otherwise read the index from the guard without CUDA.
            indexed = torch.device("cuda", 0)
            args, kwargs = tree_map_only(
                torch.device, lambda d: indexed if d.type == "cuda" else d, (args, kwargs)
            )
        elif not (fakes or _large_host(func, flat, in_parts=key is not None)):
            return _on_host(func, args, kwargs)
        if key is not None:
            with self:
                return func._op_dk(key, *args, **kwargs)
        if "pin_memory" in kwargs:
            kwargs["pin_memory"] = False
        if "generator" in kwargs:
            kwargs["generator"] = None
        moved = move_data(self, func, args, kwargs)
        if moved is not NOT_HANDLED:
            return moved
        original, args = args, masks_to_indices(self, func, args)
        device = _only_device(flat) if args is original and "device" not in kwargs else None
        if device is None:
            out = self._run_fake(func, args, kwargs)
        elif _makes_new_tensors(func):
            out = self._new_result(func, args, kwargs, device)
        else:
            out = self._meta_result(func, args, kwargs, device)
        self._book(func, args, kwargs, out)
        self._update_values(func, args, kwargs, out)
        return out

    def _meta_result(
        self, func: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
    ) -> Any:
        """Compute the fake mode's result, by torch's meta kernel if that says the same: the mode
        itself traces slowly.
        """
        if not _has_plain_meta_kernel(func):
            return self._run_fake(func, args, kwargs)
        try:
            with in_kernel_invocation_manager(self.fake):
                out = _sampled(*args) if func in _SAMPLERS else func(*args, **kwargs)
        except NotImplementedError:
            return self._run_fake(func, args, kwargs)

        def to_fake(tensor: torch.Tensor) -> FakeTensor:
            # An argument that was written to already is one.
            is_fake = isinstance(tensor, FakeTensor)
            return tensor if is_fake else FakeTensor(self.fake, tensor, device)

        return tree_map_only(torch.Tensor, to_fake, out)

    def _new_result(
        self, func: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
    ) -> Any:
        """Return new tensors, laid out as the last time for arguments of the same layouts."""
        key = func, torch.get_default_dtype(), _described(args), *map(_described, kwargs.items())
        if (layouts := self._layouts.get(key)) is None:
            out = self._meta_result(func, args, kwargs, device)
            if len(self._layouts) == _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = [_layout(fake) for fake in tree_leaves(out)]
            return out
        with in_kernel_invocation_manager(self.fake):
            made = [torch.empty_strided(*lay[:2], dtype=lay[2], device="meta") for lay in layouts]
        fakes = tuple(FakeTensor(self.fake, tensor, device) for tensor in made)
        return fakes[0] if len(fakes) == 1 else fakes

    def fake_like(self, real: torch.Tensor, dtype: torch.dtype, device: str) -> torch.Tensor:
        """Return a fake tensor with the sizes and strides of a dense copy of `real`."""
        dense = real if real.is_contiguous() else torch.empty_like(real, device="meta")
        with self.fake:
            fake: torch.Tensor = torch.empty_strided(
                real.size(), dense.stride(), dtype=dtype, device=device
            )
        return fake

    def to_fakes(self, value: Any, operation: str) -> Any:
        """Replace real tensors by fakes on the device that know their values."""

        def to_fake(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
                return leaf
            fake = self.fake_like(leaf, leaf.dtype, "cuda")
            self.ledger.book(fake, operation)
            self.values.store(fake, leaf)
            return fake

        return tree_map(to_fake, value)

    def _run_fake(self, func: Operation, args: Any, kwargs: Any) -> Any:
        try:
            with self.fake:
                return func(*args, **kwargs)
        except _DEVICE_ERRORS as error:
            value = self._compute_value(func, args, kwargs)
            if value is not None:
                return self.to_fakes(value, str(func))
            if not func._schema.returns:
                return None
            raise NoFakeImplementation(
                str(func), self.ledger.module, type(error).__name__
            ) from error

    def _book(self, func: Operation, args: Any, kwargs: Any, out: Any) -> None:
        name = func._schema.name.rpartition("::")[2]
        if func.namespace == "aten":
            self._on_aten(name)
        fakes = [leaf for leaf in tree_leaves(out) if isinstance(leaf, FakeTensor)]
        on_device = [fake for fake in fakes if fake.device.type == "cuda"]
        for fake in on_device:
            self.ledger.book(fake, str(func))
        if on_device:
            self.ledger.scratch(scratch_bytes(name, args, kwargs), str(func))

    def _update_values(self, func: Operation, args: Any, kwargs: Any, out: Any) -> None:
        """Repeat the operation on known values, and forget values that become unknown."""
        outs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, FakeTensor)]
        targets = list(_write_targets(func, args, kwargs))
        useful = [fake for fake in outs if self.values.worth_knowing(fake)]
        if func.is_view or not (useful or targets):
            return
        if func._schema.name.startswith(_EMPTIES):
            for fake in useful:
                # Larger ones are packed weights; computing on their values would take long.
                if fake.untyped_storage().nbytes() <= _FRESH_BYTES:
                    self.values.store(fake, torch.zeros((), dtype=fake.dtype).expand(fake.shape))
            return
        value = self._compute_value(func, args, kwargs) if useful else None
        if value is None:
            for target in targets:
                self.values.drop(target)
            return
        for fake, real in zip(tree_leaves(out), tree_leaves(value), strict=False):
            if not isinstance(fake, FakeTensor) or not isinstance(real, torch.Tensor):
                continue
            if real.shape == fake.shape and not any(fake is target for target in targets):
                self.values.store(fake, real)

    def _compute_value(self, func: Operation, args: Any, kwargs: Any) -> Any:
        """Run the operation on the values of its inputs; None if one is unknown."""
        if func.namespace not in ("aten", "prims"):
            return None
        values = {}
        for tensor in filter(torch.is_tensor, tree_leaves((args, kwargs))):
            value = self.values.get(tensor)
            if value is None or not self.values.worth_knowing(value):
                return None
            values[id(tensor)] = value

        def to_real(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return values[id(leaf)]
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        try:
            return func(*tree_map(to_real, args), **tree_map(to_real, kwargs))
        except (RuntimeError, NotImplementedError, IndexError):
            return None


@cache
def _composite_kernel_key(func: Operation) -> Any:
    """Return the key of a kernel that runs `func` as several operations, or None.

    mmcalib then records each of them. These are torch's composite kernels, and vLLM's kernels in
    Python, because vLLM's fakes hide what kernels allocate.
    """
    keys: tuple[Any, ...] = _COMPOSITE if func.namespace in _TORCH else ()
    if func.namespace.startswith(_RUN_AS_THEY_ARE):
        keys = _WRITTEN_IN_PYTHON
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return next((key for key in keys if func not in _WHOLE and has_kernel(func.name(), key)), None)


def _on_host(func: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the real operation. Large buffers are untouched pages, which take no memory yet."""
    kwargs.pop("pin_memory", None)
    if func in PINNING:
        return args[0]
    if func in _HOST_BUFFERS and str(kwargs.get("device") or "cpu") == "cpu":
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        nbytes = prod(args[0]) * dtype.itemsize
        if nbytes > LARGE_HOST_BYTES:
            # A context of millions of tokens may reserve more than this machine has.
            pages = mmap.mmap(-1, nbytes, flags=_UNRESERVED)
            return torch.frombuffer(pages, dtype=dtype).view(args[0])
    return func(*args, **kwargs)


def _large_host(func: Operation, flat: Sequence[Any], *, in_parts: bool) -> bool:
    """Return True if it may copy a large host tensor; a reshape may, in one of its parts."""
    large = any(
        isinstance(leaf, torch.Tensor)
        and leaf.numel() * leaf.element_size() > LARGE_HOST_BYTES
        and leaf.device.type == "cpu"
        for leaf in flat
    )
    return large and not func._schema.is_mutable and (in_parts or not func.is_view)


def _write_targets(func: Operation, args: Any, kwargs: Any) -> Any:
    if not func._schema.is_mutable:
        return
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        for leaf in tree_leaves(value):
            if isinstance(leaf, FakeTensor):
                yield leaf
