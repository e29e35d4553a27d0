"""Find a GPU by name, by description, or in this machine."""

from __future__ import annotations

import ctypes
import difflib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mmcalib.errors import UsageError
from mmcalib.releases.constants import CONTEXT_BYTES, NCCL_BYTES, NVLINK_CAPABILITIES
from mmcalib.text import GIB, gib, size_bytes

TotalStatus: TypeAlias = Literal["found", "inferred", "given", "read"]
Capability: TypeAlias = tuple[int, int]

# From `nvcc --list-gpu-arch` of CUDA 12.9 and 13, starting at 7.0, the minimum of vLLM 0.14's docs.
_MINORS = {7: (0, 2, 5), 8: (0, 6, 7, 8, 9), 9: (0,), 10: (0, 1, 3), 11: (0,), 12: (0, 1)}
CAPABILITIES: frozenset[Capability] = frozenset(
    (major, minor) for major, minors in _MINORS.items() for minor in minors
)
# Catch a wrong unit: every GPU of these capabilities has memory between the two.
LEAST_BYTES = GIB
MOST_BYTES = 2**42
CAPABILITY = re.compile(r"(\d{1,2})\.(\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as torch sees it.

    `total_bytes` is torch's `total_memory`, which is less than the advertised size and less than
    nvidia-smi's total. Its status: found (published), inferred (from a sibling, see `source`),
    given (by the user), read (from this machine's driver). `sm_count` is torch's
    `multi_processor_count`. A `unified` GPU shares the system's memory with the CPU. `free_bytes`
    are free before vLLM starts; None: all.
    """

    name: str
    torch_name: str
    total_bytes: int
    total_status: TotalStatus
    source: str
    capability: Capability
    sm_count: int | None
    unified: bool = False
    free_bytes: int | None = None

    @property
    def free_at_start(self) -> int:
        """Bytes that vLLM finds free at its first look, after the CUDA context; assumed."""
        return (self.free_bytes or self.total_bytes) - CONTEXT_BYTES

    @property
    def nccl_bytes(self) -> int:
        """Bytes that NCCL takes on each of several such GPUs before vLLM's first look; assumed."""
        return NCCL_BYTES[self.capability in NVLINK_CAPABILITIES]

    def with_nccl(self) -> Gpu:
        """Return the GPU as one of several, of which NCCL takes its part."""
        return replace(self, free_bytes=(self.free_bytes or self.total_bytes) - self.nccl_bytes)

    @property
    def compute_capability(self) -> str:
        """The capability as text, such as `8.9`."""
        return ".".join(map(str, self.capability))

    @property
    def flags(self) -> str:
        """Options of `rehearse` and `plan` that name this GPU."""
        named = self.source if self.total_status == "given" else shlex.join(["--gpu", self.name])
        free = "" if self.free_bytes is None else f" --gpu-memory-free {self.free_bytes >> 20}MiB"
        return f"{named}{free}"


def describe_gpu(memory: str, capability: str) -> Gpu:
    """Return a GPU of this memory, as torch reports it (`22.03GiB`; a GB is 10**9 bytes), and this
    capability (`8.9`). Raises UsageError.
    """
    total_bytes, match = size_bytes(memory), CAPABILITY.fullmatch(capability.strip())
    if total_bytes is None:
        raise UsageError(
            f"a GPU's memory needs a number and a unit: {memory!r}",
            hint="--gpu-memory 24GiB (or MiB, GB, MB): torch's total, not the advertised size",
        )
    if not LEAST_BYTES <= total_bytes <= MOST_BYTES:
        raise UsageError(
            f"no GPU has {memory.strip()} of memory",
            hint="--gpu-memory takes the memory of one GPU, from 1GiB to 4TiB",
        )
    if match is None:
        raise UsageError(
            f"a compute capability looks like 8.9, not {capability!r}",
            hint="--capability 8.9; nvidia-smi --query-gpu=compute_cap --format=csv prints it",
        )
    version = (int(match[1]), int(match[2]))
    if version not in CAPABILITIES:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(CAPABILITIES))
        raise UsageError(
            f"vLLM supports no GPU of compute capability {capability.strip()}",
            hint=f"--capability takes one of {known}",
        )
    return Gpu(
        name=f"{memory.strip()}, capability {capability.strip()}",
        torch_name="NVIDIA GPU",
        total_bytes=total_bytes,
        total_status="given",
        source=f"--gpu-memory {memory.strip()} --capability {capability.strip()}",
        capability=version,
        sm_count=None,
    )


def with_free_memory(gpu: Gpu, memory: str) -> Gpu:
    """Return the GPU with only so much memory free, such as `17GiB`. Raises UsageError."""
    free_bytes = size_bytes(memory)
    if free_bytes is None or not CONTEXT_BYTES < free_bytes <= gpu.total_bytes:
        total = gib(gpu.total_bytes)
        raise UsageError(
            f"--gpu-memory-free {memory}: {gpu.name} has {total}, and CUDA needs some of it",
            hint="--gpu-memory-free 17GiB: free before vLLM starts, as nvidia-smi shows it",
        )
    return replace(gpu, free_bytes=free_bytes)


BRANDS = re.compile(r"^(?:nvidia|geforce|tesla|jetson|quadro(?=rtxa)|rtx)")
# Other makers' accelerators.
OTHERS = re.compile(
    r"amd|radeon|instinct|\bmi\d{2,3}|\brx ?\d{4}|\bgfx\d|intel|\barc\b|gaudi|\bhpu"
    r"|tpu|\bv[4-7][ep]\b|trillium|trainium|inferentia|ascend|\b910[bc]\b|apple|cerebras",
    re.IGNORECASE,
)
# Folded names of NVIDIA's GPUs of compute capability below 7.0.
BEFORE_VOLTA = re.compile(
    r"(?:quadro)?(?:p\d{1,4}|m(?:4|6|10|40|60)|k\d{2}|gtx?(?:9|10)\d0(?:ti)?|10[5-8]0(?:ti)?|titanxp?)"
    r"(?:(?:pcie|sxm2?)?\d*g)?"
)
# `2x3090` and `A100:4`, but not `RTX 40`.
COUNTED = re.compile(r"\s*(\d{1,2})\s*[x×*]\s*(.+?)\s*|\s*(.*?[^tT\s])\s*[x×*:]\s*(\d{1,2})\s*")
# What the names of a GPU's variants end in.
SIZE = re.compile("-(?:[0-9]+G|PCIe|NVL)$")
GIGABYTES = re.compile(r"(?<=\d)gi?b")
# Words that tell no two GPUs of the catalogue apart.
FILLERS = re.compile("blackwell|generation|edition|workstation|server|with|maxq|design|gpu")
ANY_GPU_EXAMPLE = "--gpu-memory SIZE --capability X.Y"
_FIGURES = "python -c 'import torch; print(torch.cuda.get_device_properties(0))'"


@cache
def catalogue_gpus() -> tuple[Gpu, ...]:
    """Return every GPU of the catalogue, by maker, use and generation."""
    return tuple(gpu for gpu, _ in _entries())


def find_gpu(name: str, more: str = "") -> Gpu:
    """Return the GPU of that name, alias or torch name; ignores case, spaces, dashes and brand.

    Raises UsageError with the GPUs of that model number, all memory sizes of that GPU, or the flags
    for several of them; `more` are flags to add after --gpu.
    """
    folded = fold_name(name)
    if (gpu := _spellings().get(folded)) is not None:
        return gpu
    if counted := COUNTED.fullmatch(name):
        number, card = filter(None, (counted[1] or counted[4], counted[2] or counted[3]))
        if int(number) == 1:
            return find_gpu(card, more)
        flags = f" -- --tensor-parallel-size {number}"
        hint = f"--gpu {find_gpu(card, flags).name}{flags}"
        raise UsageError(f"{name} are several GPUs: --gpu names one", hint=hint)
    known = catalogue_gpus()
    stems = ((gpu, (SIZE.sub("", gpu.name), gpu.torch_name)) for gpu in known)
    sizes = [gpu.name for gpu, names in stems if folded in map(fold_name, names)]
    if folded and len(sizes) > 1:
        raise UsageError(
            f"{name} comes in several memory sizes: {', '.join(sizes)}",
            hint=f"--gpu {sizes[0]}{more}, or whichever you will serve on",
        )
    if "," in name:
        hint = "name one; only mmcalib run compares several"
        raise UsageError(f"{name} are several GPUs, not one", hint=hint)
    if OTHERS.search(name):
        raise UsageError(
            f"{name} is not an NVIDIA GPU, and mmcalib rehearses only those",
            hint="mmcalib run or validate without --gpu: limits and tokens, but no memory",
        )
    if BEFORE_VOLTA.fullmatch(folded):
        raise UsageError(
            f"vLLM's CUDA wheels do not run on {name}: its compute capability is below 7.0",
            hint="mmcalib list gpus",
        )
    near = _names_near(folded)
    raise UsageError(
        f"unknown GPU {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""),
        hint=f"mmcalib list gpus for the {len(known)} known ones, or {ANY_GPU_EXAMPLE} in place of "
        f"--gpu; there, {_FIGURES} prints both",
    )


def _names_near(folded: str) -> list[str]:
    """Return the closest names of that model number, or else of that class and generation."""
    same, kin, number = dict[str, str](), dict[str, str](), re.compile(r"([a-z]*)(\d*)")
    letters, digits = number.match(folded).groups()  # type: ignore[union-attr]
    for name, gpu in ((fold_name(gpu.name), gpu.name) for gpu in catalogue_gpus() if digits):
        other, its = number.match(name).groups()  # type: ignore[union-attr]
        # Letters tell H200 from B200, but a number of four digits is enough.
        if its == digits and (len(digits) > 3 or other == letters):
            same[name] = gpu
        elif (other, len(its), its[:1]) == (letters, len(digits), digits[:1]):
            kin[name] = gpu
    near = same or kin
    return [near[one] for one in difflib.get_close_matches(folded, near, 4, cutoff=0)]


def fold_name(name: str) -> str:
    """Normalize a name: drop case, separators, brands and the B of 80GB, which people vary."""
    text = GIGABYTES.sub("g", re.sub(r"[\s_/()-]+", "", name.lower()))
    text = FILLERS.sub("", text).replace("mobile", "laptop")
    while (bare := BRANDS.sub("", text)) != text:
        text = bare
    return text


@cache
def _entries() -> tuple[tuple[Gpu, list[str]], ...]:
    """Return each GPU of the catalogue and its other names."""
    entries = json.loads((Path(__file__).parent / "gpus.json").read_bytes())
    aliases = [entry.pop("aliases") for entry in entries]
    gpus = [Gpu(**{**entry, "capability": tuple(entry["capability"])}) for entry in entries]
    return tuple(zip(gpus, aliases, strict=True))


@cache
def _spellings() -> Mapping[str, Gpu]:
    """Map every folded spelling to its GPU, but no torch name that several memory sizes share."""
    shared = Counter(fold_name(gpu.torch_name) for gpu in catalogue_gpus())
    own = {fold_name(name): gpu for gpu, aliases in _entries() for name in (gpu.name, *aliases)}
    torch = ((fold_name(gpu.torch_name), gpu) for gpu in catalogue_gpus())
    return {**own, **{name: gpu for name, gpu in torch if shared[name] == 1}}


LIBRARY = "libcuda.so.1"
# CUresult and CUdevice_attribute of cuda.h.
CUDA_SUCCESS = 0
CUDA_ERROR_NO_DEVICE = 100
MULTIPROCESSOR_COUNT = 16
INTEGRATED = 18
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76
# Size of the name in cudaDeviceProp, which torch reads.
NAME_BYTES = 256
# The GPU of this machine.
AUTO = "auto"
NAME_GPU_HINT = "name the GPU to plan for: --gpu NAME"


class CudaDriver:
    """The driver in libcuda. Raises UsageError for its errors. Obeys CUDA_VISIBLE_DEVICES.

    It stays initialised, so spawn (do not fork) later processes that use CUDA.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._call("cuInit", 0)
        if self._number("cuDeviceGetCount") == 0:
            raise UsageError("CUDA finds no GPU on this machine", hint=NAME_GPU_HINT)

    def read_gpu(self) -> Gpu:
        """Read the first GPU."""
        device = ctypes.c_int(self._number("cuDeviceGet", 0))
        text = ctypes.create_string_buffer(NAME_BYTES)
        self._call("cuDeviceGetName", text, NAME_BYTES, device)
        name = text.value.decode("utf-8", errors="replace")

        def attribute(code: int) -> int:
            return self._number("cuDeviceGetAttribute", code, device)

        return Gpu(
            name=name,
            torch_name=name,
            # Equals cudaDeviceProp.totalGlobalMem (torch's total_memory) and, on Linux, the total
            # of cudaMemGetInfo, which vLLM divides: in public logs an L4 has 22563 MiB by the first
            # and 22.03 GiB by the second, an H100 81089 MiB and 79.19 GiB, a GB10 124610 MiB and
            # 121.69 GiB. nvidia-smi's total also includes the driver's reserve.
            total_bytes=self._number("cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t),
            total_status="read",
            source="the CUDA driver of this machine",
            capability=(attribute(CAPABILITY_MAJOR), attribute(CAPABILITY_MINOR)),
            sm_count=attribute(MULTIPROCESSOR_COUNT),
            unified=bool(attribute(INTEGRATED)),
        )

    def _number(self, function: str, *arguments: object, kind: Any = ctypes.c_int) -> int:
        """Return what a function writes to the pointer in its first argument."""
        number = kind()
        self._call(function, ctypes.byref(number), *arguments)
        return int(number.value)

    def _call(self, function: str, *arguments: object) -> None:
        result = getattr(self._library, function)(*arguments)
        if result == CUDA_ERROR_NO_DEVICE:
            raise UsageError("CUDA finds no GPU on this machine", hint=NAME_GPU_HINT)
        if result != CUDA_SUCCESS:
            raise UsageError(f"CUDA driver error {result} in {function}", hint=NAME_GPU_HINT)


def open_driver() -> CudaDriver:
    """Open this machine's CUDA driver. Raises UsageError if it has none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise UsageError(
            "this machine has no GPU: no CUDA driver found", hint=NAME_GPU_HINT
        ) from error
    return CudaDriver(library)


def detect_gpu(driver: Callable[[], CudaDriver] = open_driver) -> Gpu:
    """Return this machine's first GPU. Raises UsageError if it has none."""
    return driver().read_gpu()


def resolve_gpu(name: str) -> Gpu:
    """Return the GPU of this name ("auto": the present one). Raises UsageError."""
    return detect_gpu() if name == AUTO else find_gpu(name)


def has_gpu(driver: Callable[[], CudaDriver] = open_driver) -> bool:
    try:
        driver()
    except UsageError:
        return False
    return True
