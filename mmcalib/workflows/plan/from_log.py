"""A server's log as the start of a plan: model, GPU, arguments, and what went wrong."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.fixes import Constraints, Fix
from mmcalib.derive.logs import StartupLog, read_log
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.errors import UsageError
from mmcalib.files import open_document
from mmcalib.models import gpus
from mmcalib.models.gpus import Gpu
from mmcalib.releases.constants import CONTEXT_BYTES
from mmcalib.results.plan import LogSummary
from mmcalib.text import GIB, describe_releases, gib

# Arguments that change memory or what vLLM loads; none that is unsafe, such as trust_remote_code.
REHEARSED_ARGUMENTS: Final = frozenset(
    {
        *("model", "dtype", "quantization", "max_model_len", "max_num_seqs"),
        *("max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype", "block_size"),
        *("kv_cache_memory_bytes", "tensor_parallel_size", "enforce_eager", "cpu_offload_gb"),
        *("limit_mm_per_prompt", "mm_processor_kwargs", "language_model_only"),
        *("mm_encoder_tp_mode", "max_cudagraph_capture_size", "cudagraph_capture_sizes"),
        *("enable_chunked_prefill", "hf_overrides"),
    }
)
# Defaults differ between releases, and the log's figures hold for the values that its engine used.
_EFFECTIVE: Final = ("max_model_len", "max_num_batched_tokens", "gpu_memory_utilization")
_SERVER_ARGUMENTS: Final = frozenset(
    {"host", "port", "model_tag", "served_model_name", "api_key", "hf_token"}
)
# A configuration is one line of about 6,000 characters; a day's log has a few hundred megabytes.
_LINE_BYTES: Final = 100_000
_MOST_BYTES: Final = 1 << 28
# Logs round to 0.01 GiB, and drivers leave slightly different totals.
_SIZE_TOLERANCE: Final = 0.005
# The CUDA context takes up to 0.60 GiB (`CONTEXT_BYTES`): more is another process's.
_MOST_CONTEXT_BYTES: Final = 640 << 20


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A log and its engine arguments for a rehearsal; `effective` names those set by default."""

    log: StartupLog
    engine_args: Mapping[str, Any]
    ignored: tuple[str, ...]
    effective: tuple[str, ...] = ()


def read_server_log(path: Path) -> ServerLog:
    """Read a server's log. Raises UsageError if it cannot be read or is not from vLLM."""
    try:
        log = read_log(_lines(path))
    except OSError as error:
        hint = "vllm serve ... 2>&1 | tee server.log"
        raise UsageError(f"--log {path}: {error.strerror}", hint=hint) from error
    if not log.starts:
        raise UsageError(
            f"--log {path}: not the log of a vLLM server",
            hint="--log FILE with vLLM's startup output or its out-of-memory error",
        )
    args = log.engine_args
    printed = {name: getattr(log, name) for name in _EFFECTIVE}
    effective = {name: value for name, value in printed.items() if value and not args.get(name)}
    kept = {name: value for name, value in args.items() if name in REHEARSED_ARGUMENTS}
    return ServerLog(
        log=log,
        engine_args={**kept, **effective},
        effective=tuple(effective),
        ignored=tuple(sorted(args.keys() - REHEARSED_ARGUMENTS - _SERVER_ARGUMENTS)),
    )


def stated_fixes(server_log: ServerLog, constraints: Constraints) -> tuple[Fix, ...]:
    """Return the fix that the log's own error names: a measured limit, which no plan exceeds."""
    most, name = server_log.log.most_sequences, "max_num_seqs"
    if most is None:
        return ()
    price = f"at most {most} requests run at once: the log's server has a block for each"
    fix = Fix(f"{name}={most}", name, {name: most}, "speed", price)
    return (fix,) if constraints.allows(fix) else ()


def describe_log(
    server_log: ServerLog,
    base: RehearsedMemory,
    gpu: Gpu,
    oom: ObservedOom | None = None,
    doubts: Iterable[str] = (),
) -> LogSummary:
    """Summarise the log for the report; `base` is the rehearsal on `gpu`."""
    log = server_log.log
    return LogSummary(
        vllm=log.vllm_version or "",
        model=log.model or "",
        failures=list(map(str, log.failures)),
        notes=[*_notes(server_log, base, gpu), *doubts],
        oom=oom,
    )


def _notes(server_log: ServerLog, base: RehearsedMemory, gpu: Gpu) -> Iterator[str]:
    log, args = server_log.log, server_log.engine_args
    if log.vllm_version not in (None, base.vllm):
        yield describe_releases("the log", str(log.vllm_version), base.vllm)
    if log.total_bytes is not None and not _same_size(gpu.total_bytes, log.total_bytes):
        yield f"the log is from a GPU with {gib(log.total_bytes)}; mmcalib rehearsed {gpu.name}"
    if server_log.effective:
        defaults = ", ".join(f"{name}={args[name]}" for name in server_log.effective)
        yield f"defaults of the log's engine: {defaults}"
    if server_log.ignored:
        yield f"ignored arguments of the log: {', '.join(server_log.ignored)}"


def gpu_of_log(log: StartupLog) -> Gpu:
    """Return the GPU with the log's memory, or this machine's. Raises UsageError."""
    total = log.total_bytes
    present = gpus.detect_gpu() if gpus.has_gpu() else None
    if total is None:
        if present is not None:
            return present
        raise UsageError("the log does not name its GPU", hint="--gpu NAME")
    if present is not None and _same_size(present.total_bytes, total):
        return present
    candidates = [g for g in gpus.catalogue_gpus() if _same_size(g.total_bytes, total)]
    if len(candidates) == 1:
        return candidates[0]
    size = f"{total / GIB:.2f}GiB"
    if candidates:
        names = ", ".join(gpu.name for gpu in candidates)
        raise UsageError(
            f"several GPUs have the log's {size}: {names}",
            hint=f"--gpu {candidates[0].name}, or another of them",
        )
    raise UsageError(
        f"no known GPU has the log's {size}",
        hint=f"--gpu-memory {size} --capability X.Y, or --gpu NAME",
    )


def with_free_of_log(gpu: Gpu, log: StartupLog) -> Gpu:
    """Return the GPU with the memory that the log's server found free next to other processes."""
    total, free = log.total_bytes, log.free_bytes
    if free is None or total is None or not _same_size(gpu.total_bytes, total):
        return gpu
    nccl = gpu.nccl_bytes if log.engine_args.get("tensor_parallel_size", 1) != 1 else 0
    if gpu.free_bytes is not None or total - free <= _MOST_CONTEXT_BYTES + nccl:
        return gpu
    return replace(gpu, free_bytes=free + CONTEXT_BYTES + nccl)


def _same_size(one: int, other: int) -> bool:
    return abs(one - other) <= _SIZE_TOLERANCE * other


def _lines(path: Path) -> Iterator[str]:
    """Yield a log's lines, cut to _LINE_BYTES. Raises OSError, EFBIG for too large a file."""
    remaining = _MOST_BYTES
    with io.BufferedReader(open_document(path)) as file:
        while line := file.readline(_LINE_BYTES):
            remaining -= len(line)
            yield line.decode("utf-8", errors="replace")
            while remaining >= 0 and line[-1:] != b"\n" and (line := file.readline(_LINE_BYTES)):
                remaining -= len(line)
            if remaining < 0:
                why = f"larger than {_MOST_BYTES >> 20} MiB: keep only the startup output"
                raise OSError(errno.EFBIG, why)
