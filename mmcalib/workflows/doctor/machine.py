"""Host memory, shared memory and open files, as far as this process may have them."""

from __future__ import annotations

import platform
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from mmcalib.checks.check import Check, CheckId
from mmcalib.derive.processor_cache import SHM_BYTES
from mmcalib.processes.free_memory import CGROUP, MEMINFO, free_bytes
from mmcalib.results.doctor import Host
from mmcalib.sizes import GIB, MIB

HOST_MEMORY = CheckId("host memory")
SHARED_MEMORY = CheckId("shared memory")
OPEN_FILES = CheckId("open files")

# The largest of Linux' usual soft limit; each process that reads media takes a handful.
LEAST_FILES = 1024
# A container gets 64 MiB unless told otherwise; vLLM's workers and Ray hand tensors over there.
LEAST_SHM_BYTES = GIB

SHM = Path("/dev/shm")  # noqa: S108 - looked at, not written to


def host(*, cgroup: Path = CGROUP, shm: Path = SHM, meminfo: Path = MEMINFO) -> Host:
    """What is free now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Host(
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        ram_available_bytes=free_bytes(cgroup=cgroup, meminfo=meminfo),
        shm_free_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        open_files=None if soft == resource.RLIM_INFINITY else soft,
    )


def machine_checks(found: Host, *, wanted_bytes: int) -> Iterator[Check]:
    """`wanted_bytes` of host memory is what the job takes at its highest."""
    ram, shm, files = found.ram_available_bytes, found.shm_free_bytes, found.open_files
    if ram is None:
        yield Check(HOST_MEMORY, "skip", "this system does not say what is free", "")
    elif ram < wanted_bytes:
        detail = f"{_gib(ram)} free; a start on CPU takes about {_gib(wanted_bytes)}"
        yield Check(HOST_MEMORY, "warn", detail, "mmcalib run --validate budget ... needs less")
    else:
        yield Check(HOST_MEMORY, "pass", f"{_gib(ram)} free", "")
    if shm is not None and shm < LEAST_SHM_BYTES:
        detail = f"{shm / MIB:.0f} MiB of {SHM} free: too little for --executor ray and vllm serve"
        yield Check(
            SHARED_MEMORY,
            "warn",
            detail,
            f"docker run --shm-size {SHM_BYTES // GIB}g, or --ipc host",
        )
    elif shm is not None:
        yield Check(SHARED_MEMORY, "pass", f"{_gib(shm)} of {SHM} free", "")
    if files is not None and files < LEAST_FILES:
        detail = f"a process may have {files}, {LEAST_FILES} are usual"
        yield Check(OPEN_FILES, "warn", detail, f"ulimit -n {LEAST_FILES}")
    else:
        most = "any number" if files is None else f"{files:,}"
        yield Check(OPEN_FILES, "pass", f"a process may have {most}", "")


def _gib(number: int) -> str:
    return f"{number / GIB:.1f} GiB"
