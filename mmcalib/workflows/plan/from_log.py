"""A server's log as the start of a plan: which model and GPU, which arguments, what went wrong."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mmcalib.derive.logs import StartupLog, read_log
from mmcalib.documents import open_document
from mmcalib.errors import UsageError

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
_OF_THE_SERVER: Final = frozenset({"host", "port", "model_tag", "served_model_name"})
# Configurations are printed in lines of some 6,000 characters; a start prints hundreds of lines, a
# day of requests some hundred megabytes.
_LINE_BYTES: Final = 100_000
_MOST_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A log, and the engine arguments in it that a rehearsal can take; `effective` of them nobody
    had set, and the engine said what it took.
    """

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


def _lines(path: Path) -> Iterator[str]:
    """The lines of a log that may be none; each without what no line of vLLM is long enough for.

    Raises OSError, also where it goes on for too long.
    """
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
