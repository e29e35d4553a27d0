"""What planning needs to know of a GPU; and a GPU in the user's own figures."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from mmcalib.errors import UsageError
from mmcalib.sizes import GIB, size_bytes

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
    def flags(self) -> str:
        """As a user of `rehearse` or `plan` names it."""
        given = self.total_status == "given"
        return self.source if given else shlex.join(["--gpu", self.name])


def described(memory: str, capability: str) -> Gpu:
    """A GPU with that memory, as torch reports it (`22.03GiB`), and that capability (`8.9`).

    GB is 10**9 bytes and GiB 2**30. Raises UsageError for what cannot be read or cannot be.
    """
    total_bytes = _parse_memory(memory)
    parsed = _parse_capability(capability)
    return Gpu(
        name=f"{memory.strip()}, capability {capability.strip()}",
        torch_name="NVIDIA GPU",
        total_bytes=total_bytes,
        total_status="given",
        source=f"--gpu-memory {memory.strip()} --capability {capability.strip()}",
        capability=parsed,
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
