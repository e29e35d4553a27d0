"""The messages with which vLLM and PyTorch say that memory, or a budget of it, does not suffice."""

from __future__ import annotations

import re
from collections.abc import Callable

from mmcalib.derive.logs.causes import (
    AllocationFailed,
    Cause,
    ExternalWeights,
    FrontendDecoding,
    GpuOccupied,
    ItemAboveBatch,
    ItemRefused,
    KvCacheTooSmall,
    NoKvCache,
    OutOfMemory,
    ProcessKilled,
    SamplerOutOfMemory,
)
from mmcalib.derive.logs.line import Line
from mmcalib.derive.logs.quantities import COUNT, UNIT, count, size_bytes
from mmcalib.derive.logs.quantities import NUMBER as N
from mmcalib.releases.constants import NO_ROOM


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


_SIZE = rf"({N}) ({UNIT})\b"
_TRIED = _compile(rf"Tried to allocate {_SIZE}")
_GPU = _compile(rf"GPU (\d{{1,4}})(?: has a total capac\w{{1,4}} of {_SIZE})?")
_FREE = _compile(rf"of which {_SIZE} is free")
_PROCESS = _compile(rf"this process has {_SIZE} memory in use")
_ALLOCATED = _compile(rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
_POOLS = _compile(rf"with {_SIZE} allocated in private pools")
_UNALLOCATED = _compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_LAST_WORDS = "reserved by PyTorch but unallocated"
# Without figures: the driver, not PyTorch's allocator, had nothing left.
_BARE = _compile(r"\b(?:CUDA|HIP|XPU)(?: driver)? error: out of memory")

_ALLOCATOR = _compile(
    r"memory allocation failed with OOM on device (\d{1,4}) while trying to allocate "
    r"(\d{1,15}) bytes \(free: (\d{1,15}), total: (\d{1,15})\)"
)
_SAMPLER = _compile(
    r"out of memory occurred when warming up \w{1,20}(?: \(task=\w{1,40}\))? with (\d{1,9}) dummy "
    r"requests"
)
# "the models's" to 0.11, "the model's" by 0.23; "GB ... KV cache is" without a space in 0.8.
_TOO_SMALL = _compile(
    rf"with the models?'s max seq len \((\d{{1,15}})\), \(?({N}) (GiB|GB) KV\s+cache is\s?needed, "
    rf"which is larger than the available KV [Cc]ache\s+memory \(({N}) (?:GiB|GB)\)"
)
_ESTIMATED = _compile(r"stimated maximum model length is (\d{1,15})")
_TOO_SMALL_V0 = _compile(
    r"The model's max seq len \((\d{1,15})\) is larger than the maximum number of tokens that can "
    r"be stored in KV cache \((\d{1,15})\)"
)
# By 0.32 (v1/worker/utils.py:731).
_EXTERNAL = _compile(
    rf"Externally held weights on device[^(]{{0,20}} \(({N})/({N}) GiB\) exceed the desired GPU "
    rf"memory utilization \({N}, ({N}) GiB\)"
)
# By 0.25 (v1/worker/gpu_worker.py:635; multimodal/gpu_ipc_memory.py from 0.27).
_FRONTEND = _compile(
    rf"multimodal GPU decoding reserves ({N}) GiB .{{1,200}}but only ({N}) GiB is available"
)
# "with length N" when it was new (vLLM PR 33110; still in March 2026, PR 36814), "with N embedding
# tokens" by 0.23 (vllm/v1/engine/input_processor.py). Before it such a request hung.
_REFUSED = _compile(
    rf"contains a\(n\) (\w{{1,40}}) item with (?:length ({COUNT})|({COUNT}) embedding tokens), "
    rf"which exceeds the pre-allocated encoder cache size ({COUNT})"
)
_ABOVE_BATCH = _compile(
    r"max_tokens_per_mm_item \((\d{1,15})\) is larger than max_num_batched_tokens \((\d{1,15})\)"
)
_KILLED = _compile(r"(\w{1,40}) process was killed by signal -?(\d{1,3})\b")


def cause_in(line: Line) -> Cause | None:
    """What a line, with the next where it is broken, says has gone wrong; None for most lines."""
    for mark, read in _READERS:
        if mark in line.text:
            cause = read(line)
            if cause is not None:
                return cause
    return None


def _bytes(found: re.Match[str] | None, number: int = 1) -> int | None:
    if found is None or found.group(number) is None:
        return None
    return size_bytes(found.group(number), found.group(number + 1))


def _out_of_memory(line: Line) -> OutOfMemory | None:
    message = line.message(_LAST_WORDS)
    tried = _TRIED.search(message)
    if tried is None:
        return None
    # The next message is another's.
    rest = message[tried.end() :].split("Tried to allocate", 1)[0]
    gpu = _GPU.search(rest)
    return OutOfMemory(
        tried_bytes=_bytes(tried),
        gpu=int(gpu.group(1)) if gpu else None,
        total_bytes=_bytes(gpu, 2),
        free_bytes=_bytes(_FREE.search(rest)),
        process_bytes=_bytes(_PROCESS.search(rest)),
        allocated_bytes=_bytes(_ALLOCATED.search(rest)),
        graph_pools_bytes=_bytes(_POOLS.search(rest)),
        unallocated_bytes=_bytes(_UNALLOCATED.search(rest)),
    )


def _bare(line: Line) -> OutOfMemory | None:
    return OutOfMemory() if _BARE.search(line.text) else None


def _allocation_failed(line: Line) -> AllocationFailed | None:
    found = _ALLOCATOR.search(line.message("total:"))
    if not found:
        return None
    gpu, tried, free, total = map(int, found.groups())
    return AllocationFailed(tried, gpu, total, free)


def _sampler(line: Line) -> SamplerOutOfMemory | None:
    found = _SAMPLER.search(line.text)
    return SamplerOutOfMemory(int(found.group(1))) if found else None


def _no_kv_cache(line: Line) -> NoKvCache:
    return NoKvCache()


def _too_small(line: Line) -> KvCacheTooSmall | None:
    message = line.message("when initializing the engine")
    found = _TOO_SMALL.search(message)
    if not found:
        return None
    length, needed, unit, available = found.groups()
    estimated = _ESTIMATED.search(message)
    return KvCacheTooSmall(
        max_model_len=int(length),
        needed_bytes=size_bytes(needed, unit),
        available_bytes=size_bytes(available, unit),
        estimated_max_model_len=int(estimated.group(1)) if estimated else None,
    )


def _too_small_v0(line: Line) -> KvCacheTooSmall | None:
    found = _TOO_SMALL_V0.search(line.message("KV cache ("))
    return KvCacheTooSmall(int(found.group(1)), fits_tokens=int(found.group(2))) if found else None


def _occupied(line: Line) -> GpuOccupied | None:
    found = NO_ROOM.search(line.message("Decrease GPU memory"))
    if not found:
        return None
    return GpuOccupied(
        size_bytes(found["free"]),
        size_bytes(found["total"]),
        float(found["share"]),
        size_bytes(found["wanted"]),
    )


def _external(line: Line) -> ExternalWeights | None:
    found = _EXTERNAL.search(line.message("Increase GPU memory"))
    return ExternalWeights(*map(size_bytes, found.groups())) if found else None


def _frontend(line: Line) -> FrontendDecoding | None:
    found = _FRONTEND.search(line.message("available for the KV cache"))
    return FrontendDecoding(*map(size_bytes, found.groups())) if found else None


def _refused(line: Line) -> ItemRefused | None:
    found = _REFUSED.search(line.message("Please reduce"))
    if not found:
        return None
    modality, length, embeds, cache = found.groups()
    return ItemRefused(modality, count(length or embeds), count(cache))


def _above_batch(line: Line) -> ItemAboveBatch | None:
    found = _ABOVE_BATCH.search(line.message("Please increase"))
    return ItemAboveBatch(int(found.group(1)), int(found.group(2))) if found else None


def _killed(line: Line) -> ProcessKilled | None:
    found = _KILLED.search(line.text)
    return ProcessKilled(found.group(1), int(found.group(2))) if found else None


_READERS: tuple[tuple[str, Callable[[Line], Cause | None]], ...] = (
    ("Tried to allocate", _out_of_memory),
    ("rror: out of memory", _bare),
    ("memory allocation failed with OOM", _allocation_failed),
    ("when warming up", _sampler),
    ("No available memory for the cache blocks", _no_kv_cache),
    ("To serve at least one request", _too_small),
    ("max seq len", _too_small_v0),
    ("Free memory on device", _occupied),
    ("Externally held weights", _external),
    ("frontend multimodal GPU decoding reserves", _frontend),
    ("contains a(n)", _refused),
    ("Chunked MM input disabled", _above_batch),
    ("killed by signal", _killed),
)
