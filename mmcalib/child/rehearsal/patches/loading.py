"""Replacements for weights, parameters, dummy media and the platform."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import itertools
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensor

from mmcalib.child.rehearsal.ledger import GPUS
from mmcalib.releases import platform, targets
from mmcalib.releases.release import version_of
from mmcalib.releases.targets import replace

if TYPE_CHECKING:
    from mmcalib.child.rehearsal.startup import ImaginaryMachine


def install_loading(machine: ImaginaryMachine) -> None:
    """Leave dummy weights as allocated, and inspect model classes in this process."""
    # It makes a small table at import; without this a layer's first use would put it on the GPU.
    importlib.import_module("compressed_tensors")

    def forget(weights: torch.Tensor | torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        """Drop the zeros of new parameters, so that repacking does not compute on them."""
        is_model = isinstance(weights, torch.nn.Module)  # before 0.20
        for weight in weights.parameters() if is_model else [weights]:
            machine.device.values.drop_large(weight)

    for target in targets.DUMMY_WEIGHTS:
        replace(target, forget)
    # A subprocess would not have the replacements.
    replace(targets.INSPECTION, lambda function: function())

    # It copies every parameter's description, for weights that are loaded again.
    replace(targets.RELOADING, lambda model: None)

    def is_layer_gptq_quantized(
        prefix: str, quantized_layers: list[str], *args: Any, **kwargs: Any
    ) -> Any:
        """Treat an empty list as unknown, because a folder without weights gives an empty list."""
        return not quantized_layers or is_quantized(prefix, quantized_layers, *args, **kwargs)

    is_quantized = replace(targets.GPTQ_LAYER, is_layer_gptq_quantized)

    def load_model(*args: Any, **kwargs: Any) -> Any:
        """Leave it to vLLM to collect what a model builds and drops (GLM-OCR: a vision tower).

        It does once the model is built. Earlier it would be by chance, and rarely in a process as
        large as vLLM's own.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return load(*args, **kwargs)
        finally:
            if was_enabled:
                gc.enable()

    load = replace(targets.LOAD_MODEL, load_model)


@cache
def fake_parameter_class(kind: Any) -> Any:
    """Return a class for fake tensors that are parameters of this kind."""
    return kind if issubclass(kind, FakeTensor) else type(kind.__name__, (kind, FakeTensor), {})


def install_parameters(machine: ImaginaryMachine) -> None:
    """Keep vLLM's class, which knows the packing, of parameters that torch makes plain fakes."""
    if not targets.FAKES_PARAMETERS:
        return

    def new(cls: type, data: torch.Tensor | None, **kwargs: Any) -> Any:
        parameter = original_new(cls, data, **kwargs)
        if type(parameter) is FakeTensor:
            parameter.__class__ = fake_parameter_class(cls)
        return parameter

    def shallow_copy(param: torch.Tensor) -> torch.Tensor:
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
        plain.__class__ = fake_parameter_class(kind)
        plain.__dict__.update(facts)
        return plain

    original_new = replace(targets.PARAMETER, new)
    replace(targets.SHALLOW_COPY, shallow_copy)
    materialise = replace(targets.MATERIALIZE, materialize_meta_tensor)


_hashes = itertools.count()


def install_dummy_media(machine: ImaginaryMachine) -> None:
    """Let white frames share one byte, and give every item its own hash."""

    def hash_kwargs(cls: type, *args: Any, **kwargs: Any) -> str:
        """Return a new hash per item; shared data hash by identity to batch alone (0.26)."""
        if kwargs.keys() == {"data"}:
            return f"shared-{id(kwargs['data'])}"
        return f"imaginary-{next(_hashes)}"

    def numpy(self: torch.Tensor, **kwargs: Any) -> npt.NDArray[Any]:
        """Return untouched pages for a fake host tensor, such as a long clip's features."""
        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        return np.zeros(tuple(self.shape), dtype)

    replace(targets.DUMMY_PIXELS, _WhiteFrames())
    replace(targets.HASH, classmethod(hash_kwargs))
    replace("torch._subclasses.fake_tensor.FakeTensor.numpy", numpy)


class _White(np.ndarray[Any, Any]):
    """An array of one repeated entry; `copy` returns itself, because a copy would take memory."""

    def copy(self, order: Any = "C") -> _White:
        return self


class _WhiteFrames:
    """numpy, except that a filled array stores its entry once."""

    def full(self, shape: Any, value: Any, dtype: Any = None) -> npt.NDArray[Any]:
        entry = np.asarray(value, dtype=dtype).view(_White)
        return np.broadcast_to(entry, shape, subok=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def hide_cpu_build() -> None:
    """Hide that this build of vLLM is for CPUs; call it before anything of vLLM is imported.

    vLLM recognizes a CPU wheel by its name or version and turns Triton off; before 0.32 also if
    there is no package `vllm`.
    """
    original, own = importlib.metadata.version, version_of("vllm")

    def version(distribution_name: str) -> str:
        return own if distribution_name == "vllm" else original(distribution_name)

    replace("importlib.metadata.version", version)
    replace(targets.VERSION_CHECK, lambda words: False)


def install_platform(machine: ImaginaryMachine) -> None:
    """Set vLLM's platform; call it before anything of vLLM reads the platform."""
    gpu, base = machine.gpu, platform.cuda_base()
    answers = {
        "get_device_capability": platform.capability(*gpu.capability),
        "get_device_name": gpu.torch_name,
        "get_device_uuid": "imaginary",
        "get_device_total_memory": gpu.total_bytes,
        "is_fully_connected": True,
        "is_pin_memory_available": True,
        "device_count": GPUS,
        "log_warnings": None,
        "get_device_numa_node": None,
        "get_all_device_numa_nodes": None,
        "get_cuda_runtime_major": 13,
    }
    methods = {
        name: classmethod(lambda cls, *args, answer=answer, **kwargs: answer)
        for name, answer in answers.items()
    }
    replace(targets.PLATFORM, type("ImaginaryCudaPlatform", (base,), methods)())
    assert platform.current().is_cuda()
    if gpu.unified:

        def virtual_memory() -> SimpleNamespace:
            """On an integrated GPU vLLM uses the system's available memory as free memory."""
            free, total = machine.ledger.memory_info()
            return SimpleNamespace(available=free, total=total)

        replace(targets.SYSTEM_MEMORY, SimpleNamespace(virtual_memory=virtual_memory))
