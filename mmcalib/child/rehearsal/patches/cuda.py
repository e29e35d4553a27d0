"""torch.cuda and torch.accelerator, answered from the imaginary machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._device import _device_constructors

from mmcalib.child.rehearsal.device.allocator_settings import parse_settings
from mmcalib.child.rehearsal.device.machine import GPUS, Machine
from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import targets

# What vLLM makes on `current_device()`, which is an index.
_BY_INDEX = ("empty", "zeros", "ones", "full")
# Where a GPU is described by memory and capability alone: vLLM asks whether there are many.
_TYPICAL_SM_COUNT = 64
# Fixed by CUDA for every GPU that vLLM runs on.
_WARP_SIZE = 32
_THREADS_PER_SM = 2048
_REGISTERS_PER_SM = 65536
# Shared memory that one block may ask for, by compute capability (CUDA C++ Programming Guide,
# table of technical specifications); kernels choose tile sizes by it.
_SHARED_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99}
_SHARED_KIB_NEWER = {9: 227, 10: 227, 11: 227, 12: 99}


class Stream:
    """A stream or event on which nothing ever waits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream = self.cuda_event = 0
        self.device = torch.device("cuda:0")
        self.device_index = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0

    def record_event(self, event: Any = None) -> Any:
        return event or Stream()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class Generator(torch.Generator):  # type: ignore[misc] # torch is not followed
    """A generator for the device: the host's, as nothing is drawn there."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls)


class _Device(contextlib.nullcontext[None]):
    """`with torch.cuda.device(...)` and `with torch.accelerator.device_index(...)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


def properties(machine: Machine) -> SimpleNamespace:
    """What torch.cuda.get_device_properties says of the machine's GPU."""
    major, minor = machine.capability
    shared = _SHARED_KIB.get((major, minor)) or _SHARED_KIB_NEWER.get(major, 99)
    return SimpleNamespace(
        name=machine.gpu.torch_name,
        total_memory=machine.gpu.total_bytes,
        major=major,
        minor=minor,
        multi_processor_count=machine.gpu.sm_count or _TYPICAL_SM_COUNT,
        is_integrated=machine.gpu.unified,
        warp_size=_WARP_SIZE,
        max_threads_per_multi_processor=_THREADS_PER_SM,
        regs_per_multiprocessor=_REGISTERS_PER_SM,
        shared_memory_per_block_optin=shared << 10,
        shared_memory_per_multiprocessor=(shared + 1) << 10,
        gcnArchName="",
        uuid="imaginary",
    )


def install(machine: Machine) -> None:
    """From now on torch believes that the machine's GPU is there."""
    memory = _memory(machine)
    about = properties(machine)
    stream = Stream()
    both: dict[str, Any] = {
        "synchronize": lambda device=None: None,
        "device_count": lambda: GPUS,
        "current_stream": lambda device=None: stream,
        "is_available": lambda: True,
        **memory,
    }
    cuda: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        # What `set_stream` ends in: vLLM replaces that itself, to know the stream again.
        "_set_stream_by_id": lambda **stream: None,
        "device": _Device,
        "get_device_capability": lambda device=None: machine.capability,
        "get_device_name": lambda device=None: machine.gpu.torch_name,
        "get_device_properties": lambda device=None: about,
        "mem_get_info": lambda device=None: machine.memory_info(),
        "manual_seed_all": lambda seed: None,
        "manual_seed": lambda seed: None,
        "is_current_stream_capturing": lambda: False,
        "graph_pool_handle": lambda: (0, 1),
        "default_stream": lambda device=None: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Stream,
        "is_bf16_supported": lambda including_emulation=True: machine.capability >= (8, 0),
        "memory.get_allocator_backend": lambda: "native",
    }
    accelerator: dict[str, Any] = {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "set_device_index": lambda device: None,
        "device_index": _Device,
        "get_memory_info": lambda device=None: machine.memory_info(),
    }
    for name, value in {**both, **cuda}.items():
        replace(f"torch.cuda.{name}", value)
    for name, value in {**both, **accelerator}.items():
        replace(targets.accelerator(name), value)
    for name in ("Event", "Stream"):
        replace(f"torch.{name}", Stream)
    replace("torch.Tensor.record_stream", lambda tensor, stream: None)
    replace("torch.Generator", Generator)
    # The first fake tensor of a device would be preceded by a real one.
    replace("torch._subclasses.fake_tensor.init_gpu_context", lambda device: None)
    # A fake convolution asks cuDNN for its backend, to lay its result out.
    replace("torch._C._select_conv_backend", lambda *args, **kwargs: None)
    replace(
        "torch._C._conv_determine_backend_memory_format",
        lambda *args, **kwargs: torch.contiguous_format,
    )
    # `with torch.device(...)` has to know the true constructors.
    _device_constructors()
    for name in _BY_INDEX:
        replace(f"torch.{name}", _placed(getattr(torch, name)))
    replace("torch.tensor", _unpinned(torch.tensor))
    _settings(machine)


def _placed(make: Callable[..., Any]) -> Callable[..., Any]:
    """A build of torch without CUDA does not know which accelerator a bare index would mean."""

    def placed(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if isinstance(device, int):
            device = torch.device("cuda", device)
        return make(*args, device=device, **kwargs)

    return placed


def _unpinned(tensor: Callable[..., Any]) -> Callable[..., Any]:
    """torch.tensor pins what it makes without being dispatched: only a driver could."""

    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return tensor(*args, **kwargs)

    return unpinned


def _memory(machine: Machine) -> dict[str, Any]:
    def stats(device: Any = None) -> Mapping[str, int]:
        return {
            "allocated_bytes.all.current": machine.allocator.allocated_bytes,
            "allocated_bytes.all.peak": machine.allocator.allocated_peak_bytes,
            "reserved_bytes.all.current": machine.allocator.reserved_bytes,
            "reserved_bytes.all.peak": machine.allocator.reserved_peak_bytes,
            "num_alloc_retries": 0,
        }

    return {
        "memory_stats": stats,
        "memory_allocated": lambda device=None: machine.allocator.allocated_bytes,
        "max_memory_allocated": lambda device=None: machine.allocator.allocated_peak_bytes,
        "memory_reserved": lambda device=None: machine.allocator.reserved_bytes,
        "max_memory_reserved": lambda device=None: machine.allocator.reserved_peak_bytes,
        "reset_peak_memory_stats": lambda device=None: machine.allocator.reset_peak(),
        "empty_cache": lambda: machine.allocator.empty_cache(),
    }


def _settings(machine: Machine) -> None:
    """vLLM limits splitting while it loads and profiles: the allocator has to know."""
    held = [""]

    def put(text: str) -> None:
        held[0] = text
        machine.set(parse_settings(text))

    torch._C._accelerator_getAllocatorSettings = lambda: held[0]
    torch._C._accelerator_setAllocatorSettings = put
