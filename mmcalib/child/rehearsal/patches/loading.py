"""Weights, parameters, dummy media, platform.

vLLM's parameter classes over fake tensors: quantized layers ask them how they are packed.

Torch makes a plain fake tensor of a parameter whose data are fake; what vLLM's class would have
added is lost with it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import itertools
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensor

from mmcalib.child.rehearsal.ledger import GPUS, Machine
from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import models, platform, targets
from mmcalib.releases.release import installed


def install_loading() -> None:
    """Dummy weights stay as they were allocated; model classes are inspected in this process."""
    # It makes a small table when it is imported: on the GPU, if a layer asks for it first.
    if importlib.util.find_spec("compressed_tensors"):
        importlib.import_module("compressed_tensors")
    for target in targets.DUMMY_WEIGHTS:
        replace(target, _nothing)
    # A subprocess would not know of the stand-ins.
    replace(targets.INSPECTION, _run_here)
    record = replace(targets.RELOADING, None)

    def record_metadata_for_reloading(model: Any) -> None:
        """Costs a copy of every parameter's description; only online quantization needs it."""
        if models.quantizes():
            record(model)

    replace(targets.RELOADING, record_metadata_for_reloading)
    _quantize_without_weights()


def _quantize_without_weights() -> None:
    is_quantized = replace(targets.GPTQ_LAYER, None)
    if is_quantized is None:
        return

    def is_layer_gptq_quantized(
        prefix: str, quantized_layers: list[str], *args: Any, **kwargs: Any
    ) -> Any:
        """No list is that of a folder without weights, and not of a model without such layers."""
        return not quantized_layers or is_quantized(prefix, quantized_layers, *args, **kwargs)

    replace(targets.GPTQ_LAYER, is_layer_gptq_quantized)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _run_here(function: Callable[[], Any]) -> Any:
    return function()


@cache
def faked(kind: Any) -> Any:
    """The class whose fake tensors are parameters of this kind."""
    return kind if issubclass(kind, FakeTensor) else type(kind.__name__, (kind, FakeTensor), {})


def install_parameters() -> None:
    """Parameters keep their kind where they are made, and where online quantization makes them."""
    make = replace(targets.PARAMETER, None)
    materialise = replace(targets.MATERIALIZE, None)

    def new(cls: type, data: torch.Tensor | None, **kwargs: Any) -> Any:
        made = make(cls, data, **kwargs)
        if type(made) is FakeTensor:
            made.__class__ = faked(cls)
        return made

    def shallow_copy(param: torch.Tensor) -> torch.Tensor:
        """Of its class and attributes over the same storage."""
        copy = param.detach()
        copy.__class__ = type(param)
        copy.__dict__.update({**param.__dict__, **copy.__dict__})
        return copy

    def materialize_meta_tensor(meta_tensor: torch.Tensor) -> torch.Tensor:
        plain = torch.empty_strided(
            tuple(meta_tensor.size()), tuple(meta_tensor.stride()), dtype=meta_tensor.dtype
        )
        if not isinstance(plain, FakeTensor):
            return materialise(meta_tensor)
        facts = {**plain.__dict__, **meta_tensor.__dict__, "fake_device": plain.fake_device}
        kind: Any = type(meta_tensor)
        plain.__class__ = faked(kind)
        plain.__dict__.update(facts)
        return plain

    replace(targets.PARAMETER, new)
    replace(targets.SHALLOW_COPY, shallow_copy)
    replace(targets.MATERIALIZE, materialize_meta_tensor)


_hashes = itertools.count()


def install_dummy_media() -> None:
    """White frames share one byte, and no item is ever taken for one seen before."""
    replace(targets.DUMMY_PIXELS, _WhiteFrames())
    replace(
        targets.HASH,
        classmethod(_hash),
    )
    # A long clip's features are a large host tensor.
    replace("torch._subclasses.fake_tensor.FakeTensor.numpy", _untouched)


def _hash(cls: type, *args: Any, **kwargs: Any) -> str:
    """A hash of its own for every item. What items share is compared by one too, so that those that
    differ in it are not batched (0.26): there one object is one hash.
    """
    if kwargs.keys() == {"data"}:
        return f"shared-{id(kwargs['data'])}"
    return f"imaginary-{next(_hashes)}"


def _untouched(self: torch.Tensor, **kwargs: Any) -> npt.NDArray[Any]:
    """An array for a large host tensor that is not there: pages that nobody has touched."""
    dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
    return np.zeros(tuple(self.shape), dtype)


class _White(np.ndarray[Any, Any]):
    """An array of one repeated entry: a copy would only take memory."""

    def copy(self, order: Any = "C") -> _White:
        return self


class _WhiteFrames:
    """numpy, except that a filled array repeats one entry instead of holding each."""

    def full(self, shape: Any, value: Any, dtype: Any = None) -> npt.NDArray[Any]:
        entry = np.asarray(value, dtype=dtype).view(_White)
        return np.broadcast_to(entry, shape, subok=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def disown_build() -> None:
    """A CPU wheel calls itself so by its name or version, and then turns Triton off; before 0.32
    where there is no distribution `vllm`, too. Must come before anything of vLLM is imported.
    """
    asked = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return installed("vllm") if distribution_name == "vllm" else asked(distribution_name)

    installed("vllm")
    replace("importlib.metadata.version", version)
    replace(targets.VERSION_SAYS, lambda words: False)


def install_platform(machine: Machine) -> None:
    """Make it vLLM's current platform. Must come before anything of vLLM reads the platform."""
    base: Any = platform.cuda_base()

    class ImaginaryCudaPlatform(base):  # type: ignore[misc] # vLLM has no stubs
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return platform.capability(*machine.capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return machine.gpu.torch_name

        @classmethod
        def get_device_uuid(cls, device_id: int = 0) -> str:
            return "imaginary"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return machine.gpu.total_bytes

        @classmethod
        def is_fully_connected(cls, device_ids: list[int]) -> bool:
            return True

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return True

        @classmethod
        def device_count(cls) -> int:
            return GPUS

        @classmethod
        def log_warnings(cls) -> None:
            return None

        @classmethod
        def get_device_numa_node(cls, device_id: int = 0) -> None:
            return None

        @classmethod
        def get_all_device_numa_nodes(cls) -> None:
            return None

        @classmethod
        def get_cuda_runtime_major(cls) -> int:
            return 13

    replace(targets.PLATFORM, ImaginaryCudaPlatform())
    assert platform.current().is_cuda()
    if machine.gpu.unified:
        _share_memory(machine)


def _share_memory(machine: Machine) -> None:
    """On an integrated GPU vLLM takes what the system has available for what is free."""

    def virtual_memory() -> SimpleNamespace:
        free, total = machine.memory_info()
        return SimpleNamespace(available=free, total=total)

    replace(targets.SYSTEM_MEMORY, SimpleNamespace(virtual_memory=virtual_memory))
