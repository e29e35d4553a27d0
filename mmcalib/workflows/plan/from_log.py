"""A server's log as the start of a plan: the chosen start, its arguments, model and GPU."""

from __future__ import annotations

import errno
import io
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mmcalib.errors import ModelError, UsageError
from mmcalib.files import encoding_of, open_document
from mmcalib.logs.starts import StartupLog, last_failed, read_starts
from mmcalib.models import gpus
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import hub_name
from mmcalib.releases.constants import CONTEXT_BYTES, MOST_CONTEXT_BYTES, find_unsafe_settings
from mmcalib.remedies.log import ROUNDING_BYTES, LogAnswer, answer_log
from mmcalib.remedies.memory import NOTHING_KEPT, Kept
from mmcalib.text import GIB, describe_releases, gib

# Engine arguments that move no GPU memory of a start, or name files of another machine: where and
# how weights are loaded, what is logged, timed, hashed or traced, and how requests are treated.
# All others that the installed parser knows are rehearsed.
NO_MEMORY: Final = frozenset(
    {
        *("model", "served_model_name", "tokenizer", "tokenizer_mode", "tokenizer_revision"),
        *("hf_config_path", "hf_token", "revision", "code_revision", "config_format", "seed"),
        *("skip_tokenizer_init", "allowed_local_media_path", "allowed_media_domains"),
        *("download_dir", "load_format", "model_weights", "ignore_patterns", "use_tqdm_on_load"),
        *("safetensors_load_strategy", "safetensors_prefetch_num_threads"),
        *("safetensors_prefetch_block_size", "max_parallel_loading_workers"),
        *("model_loader_extra_config", "pt_load_map_location", "distributed_timeout_seconds"),
        *("cpu_distributed_timeout_seconds", "master_port", "data_parallel_rpc_port"),
        *("numa_bind", "numa_bind_nodes", "numa_bind_cpus", "device_ids", "shutdown_timeout"),
        *("prefix_caching_hash_algo", "mm_processor_cache_gb", "mm_processor_cache_type"),
        *("mm_hasher_algorithm", "mm_shm_cache_max_object_size_mb", "renderer_num_workers"),
        *("disable_log_stats", "aggregate_engine_logging", "enable_log_requests", "log_level"),
        *("show_hidden_metrics_for_version", "collect_detailed_traces", "kv_cache_metrics"),
        *("kv_cache_metrics_sample", "custom_histogram_buckets", "cudagraph_metrics"),
        *("enable_layerwise_nvtx_tracing", "enable_mfu_metrics", "jit_monitor_mode"),
        *("enable_logging_iteration_details", "jit_monitor_verbose", "enable_mm_processor_stats"),
        *("per_request_spec_decode_metrics", "enable_trace_replay", "ray_workers_use_nsight"),
        *("scheduling_policy", "generation_config", "override_generation_config"),
        *("structured_outputs_config", "reasoning_parser", "reasoning_config", "watermark_config"),
        *("interleave_mm_strings", "max_num_queued_reqs", "max_num_queued_tokens"),
        *("stream_interval", "tokens_only", "fail_on_environ_validation", "default_mm_loras"),
        *("mm_encoder_fp8_scale_path", "mm_encoder_fp8_scale_save_path", "nnodes", "node_rank"),
    }
)
# The rest of these are of the API server.
_SERVER: Final = frozenset({"host", "port", "model_tag", "api_key"})
# Defaults differ between releases, and the log's figures hold for the values that its engine used.
_EFFECTIVE: Final = ("max_model_len", "max_num_batched_tokens", "gpu_memory_utilization")
# A configuration is one line of about 6,000 characters; a day's log has a few hundred megabytes.
_LINE_CHARS: Final = 100_000
_MOST_BYTES: Final = 1 << 28
_GZIP: Final = b"\x1f\x8b"
# Drivers leave slightly different totals: older ones up to 229 MiB above the catalogue, as its
# sources say (an RTX 2080; 127 MiB on an RTX 4090).
_SIZE_TOLERANCE: Final = 0.005
_OLDER_DRIVER_BYTES: Final = 232 << 20
# To name before other GPUs of the same size.
_COMMON: Final = (
    *("RTX-4090", "RTX-3090", "RTX-5090", "T4", "L4", "A10G", "L40S", "RTX-A6000"),
    *("A100-40G", "A100-80G", "H100-80G", "H200", "RTX-PRO-6000"),
)
# What a log's weights may differ from the rehearsed ones, and by how much a model is another one.
_SAME_WEIGHTS, _OTHER_MODEL = 0.03, 0.15
_SAME_CACHE: Final = 0.05
MAKERS: Final = {"rocm": "an AMD GPU", "cpu": "a CPU", "tpu": "a TPU", "xpu": "an Intel GPU"}
_OTHERS: Final = {"sglang": "SGLang", "llama_model_load": "llama.cpp", "text_generation": "TGI"}
_AT_LINE: Final = re.compile(r"(.+):([1-9]\d{0,8})")


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The starts of a log, and the chosen one."""

    starts: tuple[StartupLog, ...]
    log: StartupLog

    def answer(self, gpu: Gpu | None = None, kept: Kept = NOTHING_KEPT) -> LogAnswer:
        """Answer from the log alone."""
        answer = answer_log(self.starts, self.log, gpu.total_bytes if gpu else None, kept)
        return replace(answer, model=hub_name(answer.model))

    def engine_args(self, known: Collection[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the arguments to rehearse, of those that the parser knows, and the others.

        None of them is unsafe, such as trust_remote_code, whatever the log says.
        """
        args = self.log.engine_args
        unsafe = {name.partition(".")[0] for name in find_unsafe_settings(args, {}, (*args,))}
        kept = {n: v for n, v in args.items() if n in known and n not in NO_MEMORY | unsafe}
        printed = {name: getattr(self.log, name) for name in _EFFECTIVE}
        kept = {**{n: v for n, v in printed.items() if v is not None}, **kept}
        return kept, tuple(sorted(args.keys() - kept.keys() - NO_MEMORY - _SERVER))


def read_server_log(path: Path, model: str | None = None) -> ServerLog:
    """Read a server's log, or FILE:LINE for the start there; else the last that failed is chosen,
    of `model` if it has any. Raises UsageError without a start.
    """
    line = 0
    if (at := _AT_LINE.fullmatch(str(path))) and not path.exists():
        path, line = Path(at[1]), int(at[2])
    try:
        starts = tuple(one for one in read_starts(_lines(path)) if one.is_vllm)
    except OSError as error:
        hint = "vllm serve ... 2>&1 | tee server.log"
        raise UsageError(f"--log {path}: {error.strerror}", hint=hint) from error
    if not starts:
        text = "".join(itertools.islice(_lines(path), 1000)).lower()
        of = next((f", but of {name}" for mark, name in _OTHERS.items() if mark in text), "")
        hint = "--log FILE with vLLM's startup output, or its error with the lines above it"
        raise UsageError(f"--log {path}: not the log of a vLLM server{of}", hint=hint)
    picked = [one for one in starts if line and one.line <= line]
    if line and not picked:
        why = f"--log {path}: no server starts by line {line}"
        raise UsageError(why, hint=f"--log {path}:{starts[0].line}")
    # An export may have its newest start first.
    named = [one for one in starts if model and hub_name(one.model or "") == model] or starts
    chosen = max(picked, key=lambda one: one.line) if picked else last_failed(named)
    if chosen.is_mixed:
        why = f"--log {path}: the lines of several servers are mixed, and do not say whose they are"
        raise UsageError(why, hint="--log FILE with one server's lines: kubectl logs POD > FILE")
    return ServerLog(starts, chosen)


def gpu_of_log(log: StartupLog) -> Gpu:
    """Return the GPU with the log's memory or name, or this machine's. Raises UsageError."""
    total = log.total_bytes
    if total is None and log.gpu is not None:
        return gpus.find_gpu(log.gpu)
    present = gpus.detect_gpu() if gpus.has_gpu() else None
    if present is not None and (total is None or _same_size(present.total_bytes, total)):
        return present
    if total is None:
        raise UsageError("the log does not name its GPU", hint="--gpu NAME")
    rank = {name: at for at, name in enumerate(_COMMON)}
    candidates = [g for g in gpus.catalogue_gpus() if _same_size(g.total_bytes, total)]
    candidates = [one for one in candidates if one.torch_name == log.gpu] or candidates
    candidates.sort(key=lambda gpu: rank.get(gpu.name, len(rank)))
    if len(candidates) == 1:
        return candidates[0]
    size = f"{total / GIB:.2f}GiB"
    if candidates:
        names = ", ".join(gpu.name for gpu in candidates)
        hint = f"--gpu {candidates[0].name}, or another of them"
        raise UsageError(f"several GPUs have the log's {size}: {names}", hint=hint)
    hint = f"--gpu-memory {size} --capability X.Y, or --gpu NAME"
    raise UsageError(f"no known GPU has the log's {size}", hint=hint)


def with_memory_of_log(gpu: Gpu, log: StartupLog) -> Gpu:
    """Return the GPU with the log's total, and what its server found free next to other processes.

    A total that the user gives stays.
    """
    total, free = log.total_bytes, log.free_bytes
    if total is None or not _same_size(gpu.total_bytes, total):
        return gpu
    if gpu.total_status != "given" and abs(total - gpu.total_bytes) > ROUNDING_BYTES:
        gpu = replace(gpu, total_bytes=total, total_status="read", source="the server's log")
    nccl = gpu.nccl_bytes if log.engine_args.get("tensor_parallel_size", 1) != 1 else 0
    if free is not None and gpu.free_bytes is None and total - free > MOST_CONTEXT_BYTES + nccl:
        gpu = replace(gpu, free_bytes=free + CONTEXT_BYTES + nccl)
    return gpu


def notes_of(log: StartupLog, gpu: Gpu, vllm: str, ignored: Sequence[str]) -> Iterator[str]:
    """Say what of the log the rehearsals do not share."""
    if log.vllm_version not in (None, vllm):
        yield describe_releases("the log", str(log.vllm_version), vllm)
    if log.platform in MAKERS:
        yield f"the log is from {MAKERS[log.platform]}; its figures do not hold for {gpu.name}"
    elif log.total_bytes is not None and not _same_size(gpu.total_bytes, log.total_bytes):
        yield f"the log is from a GPU with {gib(log.total_bytes)}; mmcalib rehearsed {gpu.name}"
    # With -1 the engine fits the context to its KV cache.
    used = {n: getattr(log, n) for n in _EFFECTIVE if log.engine_args.get(n, -1) == -1}
    if defaults := [f"{name}={value}" for name, value in used.items() if value is not None]:
        yield f"defaults of the log's engine: {', '.join(defaults)}"
    if ignored:
        yield f"arguments of the log that are not rehearsed: {', '.join(ignored)}"


def is_comparable(log: StartupLog, gpu: Gpu) -> bool:
    """True if a rehearsal on this GPU stands for the log's."""
    total = log.total_bytes
    return log.platform not in MAKERS and (total is None or _same_size(gpu.total_bytes, total))


def compare_log(log: StartupLog, weights: int, kv_cache: int, twins: Sequence[str]) -> list[str]:
    """Name what the rehearsal of the log's configuration does not reproduce, with the likely cause.

    Raises ModelError if the weights are another model's.
    """
    notes, logged = [], log.weights_bytes
    if logged is not None and abs(weights - logged) > _SAME_WEIGHTS * logged:
        words = f"the log's weights are {gib(logged)}, and this model's {gib(weights)}"
        if abs(weights - logged) > _OTHER_MODEL * logged:
            cause = "a quantized build" if logged < weights else "a build with wider weights"
            names = f"--model with it: {', '.join(twins)}" if twins else "--model with its hub id"
            raise ModelError(f"{words}: {cause}, or another model", hint=names)
        notes.append(f"{words}: another release, or other layers are quantized")
    if log.kv_cache_bytes is not None:
        more = kv_cache - log.kv_cache_bytes
        if abs(more) > _SAME_CACHE * max(abs(log.kv_cache_bytes), GIB):
            words = f"the log's KV cache is {gib(log.kv_cache_bytes)}, rehearsed {gib(kv_cache)}"
            cause = "another release" if log.total_bytes else "another GPU or release"
            cause += ", or other processes on the GPU" if more > 0 else ""
            notes.append(f"{words}: {cause}")
    return notes


def _same_size(card: int, logged: int) -> bool:
    most = max(_SIZE_TOLERANCE * logged, _OLDER_DRIVER_BYTES)
    return -_SIZE_TOLERANCE * logged <= logged - card <= most


def _lines(path: Path) -> Iterator[str]:
    """Yield a log's lines, cut to _LINE_CHARS. Raises OSError, EFBIG for too large a file, and
    UsageError for a compressed one.
    """
    remaining, begins = _MOST_BYTES, True
    with io.BufferedReader(open_document(path)) as raw:
        head = raw.peek(2)
        if head.startswith(_GZIP):
            raise UsageError(f"--log {path}: compressed by gzip", hint=f"gunzip -k {path}")
        file = io.TextIOWrapper(raw, encoding_of(head), errors="replace", newline="\n")
        while line := file.readline(_LINE_CHARS):
            if begins:
                yield line
            begins, remaining = line[-1] == "\n", remaining - len(line)
            if remaining < 0:
                why = f"larger than {_MOST_BYTES >> 20} MiB: keep only the startup output"
                raise OSError(errno.EFBIG, why)
