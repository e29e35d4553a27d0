"""GPUs by name, described, present."""

from __future__ import annotations

import ctypes
import difflib
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, Protocol, TypeAlias, get_args

from mmcalib.errors import UsageError
from mmcalib.text import GIB, size_bytes

TotalStatus: TypeAlias = Literal["found", "inferred", "given", "read"]
TOTAL_STATUSES: tuple[str, ...] = get_args(TotalStatus)
Capability: TypeAlias = tuple[int, int]

# Those of `nvcc --list-gpu-arch`, CUDA 12.9 and 13, from 7.0, the least in vLLM 0.14's docs.
CAPABILITIES: frozenset[Capability] = frozenset(
    {
        *((7, 0), (7, 2), (7, 5)),
        *((8, 0), (8, 6), (8, 7), (8, 8), (8, 9)),
        (9, 0),
        *((10, 0), (10, 1), (10, 3)),
        (11, 0),
        *((12, 0), (12, 1)),
    }
)
# Bounds of our own, against a slip of the unit: no GPU of these capabilities lies outside.
LEAST_BYTES = GIB
MOST_BYTES = 2**42
CAPABILITY = re.compile(r"(\d{1,2})\.(\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as torch sees it.

    `total_bytes` is torch's `total_memory`, which is less than the size it is sold by and less
    than nvidia-smi's total. found: seen in public; inferred: from a sibling, as `source` says;
    given: by the user; read: from this machine's driver. `sm_count` is torch's
    `multi_processor_count`. `memory_only`: no CUDA, so only memory can be planned; `unified`: the
    memory is the system's, shared with the CPU.
    """

    name: str
    torch_name: str
    total_bytes: int
    total_status: TotalStatus
    source: str
    capability: Capability | None
    sm_count: int | None
    memory_only: bool = False
    unified: bool = False

    @property
    def compute_capability(self) -> str:
        """Such as `8.9`; empty where there is none."""
        return ".".join(map(str, self.capability or ()))

    @property
    def flags(self) -> str:
        """As a user of `rehearse` or `plan` names it."""
        given = self.total_status == "given"
        return self.source if given else shlex.join(["--gpu", self.name])


def described(memory: str, capability: str) -> Gpu:
    """A GPU of this memory, as torch reports it (`22.03GiB`; GB is 10**9), and capability (`8.9`).
    Raises UsageError.
    """
    return Gpu(
        name=f"{memory.strip()}, capability {capability.strip()}",
        torch_name="NVIDIA GPU",
        total_bytes=_parse_memory(memory),
        total_status="given",
        source=f"--gpu-memory {memory.strip()} --capability {capability.strip()}",
        capability=_parse_capability(capability),
        sm_count=None,
    )


def _parse_memory(text: str) -> int:
    total_bytes = size_bytes(text)
    if total_bytes is None:
        raise UsageError(
            f"a GPU's memory is a number and a unit, not {text!r}",
            hint="--gpu-memory 24GiB, or in MiB, GB or MB; torch's total, not the size on the box",
        )
    if not LEAST_BYTES <= total_bytes <= MOST_BYTES:
        raise UsageError(
            f"no GPU has {text.strip()} of memory for vLLM to use",
            hint="--gpu-memory takes the memory of one GPU, from 1GiB to 4TiB",
        )
    return total_bytes


def _parse_capability(text: str) -> Capability:
    match = CAPABILITY.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"a compute capability is two numbers with a point, not {text!r}",
            hint="--capability 8.9; nvidia-smi --query-gpu=compute_cap --format=csv prints it",
        )
    capability = (int(match[1]), int(match[2]))
    if capability not in CAPABILITIES:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(CAPABILITIES))
        raise UsageError(
            f"no GPU that vLLM runs on has compute capability {text.strip()}",
            hint=f"--capability takes one of {known}",
        )
    return capability


BRANDS = re.compile(r"^(?:nvidia|amd|geforce|tesla|quadro|instinct|rtx)")
AMD = re.compile(r"\bamd\b|radeon|instinct|\bmi\d{3}", re.IGNORECASE)
GIGABYTES = re.compile(r"(?<=\d)gi?b")
SUGGESTIONS = 3
ANY = "--gpu-memory 24GiB --capability 8.9"


@cache
def all() -> tuple[Gpu, ...]:  # noqa: A001 - read as `catalogue.all()`
    """Every GPU of the catalogue, in its order: by maker, use and generation."""
    return tuple(_parse(entry) for entry in _document())


def find(name: str) -> Gpu:
    """The GPU of that name, alias or torch name; case, spaces, dashes and brand do not matter.

    Raises UsageError with the closest names, or with all sizes of memory it is sold with.
    """
    spellings = _spellings()
    wanted = fold(name)
    if (gpu := spellings.get(wanted)) is not None:
        return gpu
    meant = [gpu.name for gpu in all() if fold(gpu.name.rpartition("-")[0]) == wanted]
    if wanted and len(meant) > 1:
        raise UsageError(
            f"{name} is sold with several sizes of memory: {', '.join(meant)}",
            hint=f"name the one that will serve: --gpu {meant[0]}",
        )
    if "," in name:
        hint = "one of them; on the command line, run compares several"
        raise UsageError(f"{name} are several GPUs, not one", hint=hint)
    if AMD.search(name):
        raise UsageError(
            f"{name} is an AMD GPU, on which vLLM runs other code: only NVIDIA's can be rehearsed",
            hint="mmcalib list gpus",
        )
    close = difflib.get_close_matches(wanted, spellings, n=4 * SUGGESTIONS, cutoff=0.5)
    near = list(dict.fromkeys(spellings[spelling].name for spelling in close))[:SUGGESTIONS]
    raise UsageError(
        f"no GPU called {name!r} is known" + (f"; close to it: {', '.join(near)}" if near else ""),
        hint=f"mmcalib list gpus shows {len(all())}; any other, instead of --gpu: {ANY}",
    )


def fold(name: str) -> str:
    """A name without what people leave out or vary: case, separators, brands, the B of 80GB."""
    text = GIGABYTES.sub("g", re.sub(r"[\s_/()-]+", "", name.lower()))
    while (bare := BRANDS.sub("", text)) != text:
        text = bare
    return text


@cache
def _document() -> tuple[Mapping[str, Any], ...]:
    file = resources.files("mmcalib.models") / "gpus.json"
    return tuple(json.loads(file.read_text(encoding="utf-8")))


@cache
def _spellings() -> Mapping[str, Gpu]:
    """Every folded spelling; raises ValueError when one is claimed by two GPUs."""
    found: dict[str, Gpu] = {}
    for gpu, entry in zip(all(), _document(), strict=True):
        for spelling in map(fold, (entry["name"], entry["torch_name"], *entry["aliases"])):
            if found.setdefault(spelling, gpu) is not gpu:
                raise ValueError(f"{spelling} is both {found[spelling].name} and {gpu.name}")
    return found


def _parse(entry: Mapping[str, Any]) -> Gpu:
    """Raises KeyError, TypeError or ValueError for an entry that is not whole."""
    values = {key: value for key, value in entry.items() if key != "aliases"}
    if values["capability"] is not None:
        values["capability"] = tuple(values["capability"])
        if values["capability"] not in CAPABILITIES:
            raise ValueError(f"{values['name']}: unknown capability {values['capability']}")
    if values["total_status"] not in TOTAL_STATUSES:
        raise ValueError(f"{values['name']}: unknown status {values['total_status']!r}")
    return Gpu(**values)


LIBRARY = "libcuda.so.1"
# CUresult and CUdevice_attribute of cuda.h.
CUDA_SUCCESS = 0
CUDA_ERROR_NO_DEVICE = 100
MULTIPROCESSOR_COUNT = 16
INTEGRATED = 18
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76
# The room for a name in cudaDeviceProp, which torch reads.
NAME_BYTES = 256
INSTEAD = "name one instead: --gpu NAME"


class Driver(Protocol):
    """What is asked of the CUDA driver; devices count from 0, as torch numbers them."""

    def count(self) -> int: ...
    def name(self, device: int) -> str: ...
    def total_bytes(self, device: int) -> int: ...
    def attribute(self, code: int, device: int) -> int: ...


class CudaDriver:
    """The driver behind libcuda; raises UsageError for whatever it refuses.

    It stays initialised: later users of CUDA must be spawned. Heeds CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._ask("cuInit", 0)

    def count(self) -> int:
        return self._number("cuDeviceGetCount")

    def name(self, device: int) -> str:
        text = ctypes.create_string_buffer(NAME_BYTES)
        self._ask("cuDeviceGetName", text, NAME_BYTES, self._handle(device))
        return text.value.decode("utf-8", errors="replace")

    def total_bytes(self, device: int) -> int:
        # The same figure as cudaDeviceProp.totalGlobalMem (torch's total_memory) and, on Linux, as
        # cudaMemGetInfo's total, which vLLM divides: public logs give an L4 as 22563 MiB by the one
        # and 22.03 GiB by the other, an H100 as 81089 MiB and 79.19 GiB, a GB10 as 124610 MiB and
        # 121.69 GiB. nvidia-smi's total is larger, by what the driver keeps for itself.
        return self._number("cuDeviceTotalMem_v2", self._handle(device), kind=ctypes.c_size_t)

    def attribute(self, code: int, device: int) -> int:
        return self._number("cuDeviceGetAttribute", code, self._handle(device))

    def _handle(self, device: int) -> ctypes.c_int:
        return ctypes.c_int(self._number("cuDeviceGet", device))

    def _number(self, function: str, *arguments: object, kind: Any = ctypes.c_int) -> int:
        """What a function writes to the pointer that is its first argument."""
        found = kind()
        self._ask(function, ctypes.byref(found), *arguments)
        return int(found.value)

    def _ask(self, function: str, *arguments: object) -> None:
        result = getattr(self._library, function)(*arguments)
        if result == CUDA_ERROR_NO_DEVICE:
            raise UsageError("this machine has no GPU that CUDA can see", hint=INSTEAD)
        if result != CUDA_SUCCESS:
            raise UsageError(f"the CUDA driver answers {function} with {result}", hint=INSTEAD)


def open_driver() -> Driver:
    """The CUDA driver of this machine; raises UsageError when it has none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise UsageError("this machine has no CUDA driver, so no GPU", hint=INSTEAD) from error
    return CudaDriver(library)


def present(driver: Callable[[], Driver] = open_driver) -> Gpu:
    """The first GPU of this machine; raises UsageError when there is none."""
    cuda = driver()
    if cuda.count() == 0:
        raise UsageError("this machine has no GPU that CUDA can see", hint=INSTEAD)
    name = cuda.name(0)
    return Gpu(
        name=name,
        torch_name=name,
        total_bytes=cuda.total_bytes(0),
        total_status="read",
        source="the CUDA driver of this machine",
        capability=(cuda.attribute(CAPABILITY_MAJOR, 0), cuda.attribute(CAPABILITY_MINOR, 0)),
        sm_count=cuda.attribute(MULTIPROCESSOR_COUNT, 0),
        unified=bool(cuda.attribute(INTEGRATED, 0)),
    )


def has_gpu(driver: Callable[[], Driver] = open_driver) -> bool:
    """Whether `present` would find a GPU."""
    try:
        return driver().count() > 0
    except UsageError:
        return False
