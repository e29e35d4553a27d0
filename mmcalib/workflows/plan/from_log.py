"""A server's log as the start of a plan: model, GPU, arguments, and what went wrong."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.logs import StartupLog, read_log
from mmcalib.domain.memory import Rehearsed
from mmcalib.errors import UsageError
from mmcalib.files import open_document
from mmcalib.models import gpus
from mmcalib.models.gpus import Gpu
from mmcalib.results.plan import Logged
from mmcalib.text import GIB, gib

# Arguments that move memory, or decide what is loaded. The others are of the API server, or are
# not for a log to decide, such as trust_remote_code.
TAKEN_OVER: Final = frozenset(
    {
        *("model", "dtype", "quantization", "max_model_len", "max_num_seqs"),
        *("max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype", "block_size"),
        *("kv_cache_memory_bytes", "tensor_parallel_size", "enforce_eager", "cpu_offload_gb"),
        *("limit_mm_per_prompt", "mm_processor_kwargs", "language_model_only"),
        *("mm_encoder_tp_mode", "max_cudagraph_capture_size", "cudagraph_capture_sizes"),
        *("enable_chunked_prefill", "hf_overrides"),
    }
)
# Defaults differ between releases; where an engine says what it took, that is what its figures are
# of.
_EFFECTIVE: Final = ("max_model_len", "max_num_batched_tokens", "gpu_memory_utilization")
# Of no weight here.
_OF_THE_SERVER: Final = frozenset(
    {"host", "port", "model_tag", "served_model_name", "api_key", "hf_token"}
)
# Configurations are printed in lines of some 6,000 characters; a start prints hundreds of lines, a
# day of requests some hundred megabytes.
_LINE_BYTES: Final = 100_000
_MOST_BYTES: Final = 1 << 28
# Logs round to 0.01 GiB, and drivers differ a little in what they leave.
_ROUNDED: Final = 0.005


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A log, and its arguments that a rehearsal can take; `effective` are the engine's defaults."""

    log: StartupLog
    engine_args: Mapping[str, Any]
    left_out: tuple[str, ...]
    effective: tuple[str, ...] = ()


def read(path: Path) -> ServerLog:
    """Raises UsageError where the file cannot be read, or holds nothing of a vLLM server."""
    try:
        log = read_log(_lines(path))
    except OSError as error:
        raise UsageError(
            f"--log {path}: {error.strerror}", hint="vllm serve ... 2>&1 | tee server.log keeps one"
        ) from error
    if not log.starts:
        raise UsageError(
            f"--log {path}: no line of it is of a vLLM server",
            hint="--log FILE with what vLLM printed on its start, or its out-of-memory message",
        )
    given = log.engine_args
    said = {name: getattr(log, name) for name in _EFFECTIVE}
    effective = {name: value for name, value in said.items() if value and not given.get(name)}
    return ServerLog(
        log=log,
        engine_args={
            **{name: given[name] for name in given if name in TAKEN_OVER},
            **effective,
        },
        effective=tuple(effective),
        left_out=tuple(sorted(given.keys() - TAKEN_OVER - _OF_THE_SERVER)),
    )


def logged(
    found: ServerLog,
    base: Rehearsed,
    gpu: Gpu,
    oom: ObservedOom | None = None,
    doubts: Iterable[str] = (),
) -> Logged:
    """What the log said, for the report; `base` is the rehearsal on `gpu`."""
    log = found.log
    return Logged(
        vllm=log.vllm_version or "",
        model=log.model or "",
        failures=list(map(str, log.failures)),
        notes=[*_notes(found, base, gpu), *doubts],
        oom=oom,
    )


def _notes(found: ServerLog, base: Rehearsed, gpu: Gpu) -> Iterator[str]:
    log = found.log
    if log.vllm_version not in (None, base.vllm):
        yield f"the log is of vLLM {log.vllm_version}; the installed {base.vllm} was rehearsed"
    if log.total_bytes is not None and not _same_size(gpu.total_bytes, log.total_bytes):
        yield f"the log is of a GPU with {gib(log.total_bytes)}: all is rehearsed on {gpu.name}"
    if found.effective:
        said = ", ".join(f"{name}={found.engine_args[name]}" for name in found.effective)
        yield f"as the log's engine had it by default: {said}"
    if found.left_out:
        yield f"not taken over from the log: {', '.join(found.left_out)}"


def gpu_of_log(log: StartupLog) -> Gpu:
    """The GPU whose memory the log states, or this machine's. Raises UsageError."""
    total = log.total_bytes
    here = gpus.present() if gpus.has_gpu() else None
    if total is None:
        if here is not None:
            return here
        raise UsageError("the log does not say which GPU it is of", hint="--gpu NAME")
    if here is not None and _same_size(here.total_bytes, total):
        return here
    alike = [
        gpu
        for gpu in gpus.all()
        if _same_size(gpu.total_bytes, total) and gpu.capability and not gpu.memory_only
    ]
    if len(alike) == 1:
        return alike[0]
    size = f"{total / GIB:.2f}GiB"
    if alike:
        raise UsageError(
            f"the log is of a GPU with {size}: {', '.join(gpu.name for gpu in alike)}",
            hint=f"--gpu {alike[0].name}, or whichever it is",
        )
    raise UsageError(
        f"the log is of a GPU with {size}, which no known GPU has",
        hint=f"--gpu-memory {size} --capability X.Y, or --gpu NAME",
    )


def _same_size(one: int, other: int) -> bool:
    return abs(one - other) <= _ROUNDED * other


def _lines(path: Path) -> Iterator[str]:
    """The lines of a log that may be none, each cut. Raises OSError, also where it is too large."""
    left = _MOST_BYTES
    with io.BufferedReader(open_document(path)) as file:
        while line := file.readline(_LINE_BYTES):
            left -= len(line)
            yield line.decode("utf-8", errors="replace")
            while not line.endswith(b"\n") and (line := file.readline(_LINE_BYTES)):
                left -= len(line)
                if left < 0:
                    break
            if left < 0:
                said = f"it is larger than {_MOST_BYTES >> 20} MiB: keep what the start printed"
                raise OSError(errno.EFBIG, said)
