"""Read a vLLM server's log: each start's arguments, memory figures, and why it ended (0.9 to 0.33).

A log is a measurement: what it states is kept, and facts that it does not state stay None. No line
is an error. Servers whose lines are mixed are told apart by pod, unit or host, and by process. Of
0.8 only one error is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from mmcalib.logs.lines import NON_DEFAULT, Line, Value, read_arguments, read_lines
from mmcalib.text import GIB, KIB, MIB

_Start = Literal["start", "weights", "kv cache", "cuda graphs", "warm-up"]
_Profile = Literal["profile", "profile: encoder", "profile: language model", "profile: sampler"]
Phase = Literal[_Start, _Profile, "serving", "serving: encoder"]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """PyTorch ran out of GPU memory. All in bytes, None if not in the message."""

    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    graph_pools_bytes: int | None = None
    unallocated_bytes: int | None = None
    others_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One error, even if repeated. `is_other`: it is none of vLLM's about memory or limits."""

    text: str
    phase: Phase | None
    oom: OutOfMemory | None = None
    is_other: bool = False


@dataclass(frozen=True, slots=True)
class StartupLog:
    """One start in a log, from `line` on; None and empty if unknown.

    `engine_args` are the arguments set, with secrets, and `unread_args` those that are no literals;
    `max_model_len` and the two after it are the engine's. Bytes are those of the worker with the
    least room: `needed_bytes` of KV cache are what one request takes, `wanted_bytes` what the
    utilization asks for. `longest_context`, `most_sequences` and `least_batched_tokens` are values
    that vLLM's error allows. `phase` is the last one announced, `refused` the last error that a
    request met. `is_vllm`: a line is vLLM's own; other programs run out of PyTorch's memory too.
    `is_mixed`: its lines are of several servers.
    """

    line: int = 0
    vllm_version: str | None = None
    model: str | None = None
    architecture: str | None = None
    platform: str | None = None
    gpu: str | None = None
    port: int | None = None
    engine_args: dict[str, Value] = field(default_factory=dict)
    unread_args: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    wanted_bytes: int | None = None
    weights_bytes: int | None = None
    consumed_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    graphs_bytes: int | None = None
    kv_cache_bytes: int | None = None
    other_kv_cache_bytes: int | None = None  # The most of the workers, if they differ.
    kv_cache_tokens: int | None = None
    needed_bytes: int | None = None
    encoder_budget_tokens: int | None = None
    profiled_items: int | None = None
    profiled_modality: str | None = None
    longest_context: int | None = None
    most_sequences: int | None = None
    least_batched_tokens: int | None = None
    warmed_sequences: int | None = None
    failures: tuple[Failure, ...] = ()
    phase: Phase | None = None
    refused: str = ""
    is_ready: bool = False
    is_vllm: bool = False
    is_mixed: bool = False

    @property
    def outcome(self) -> str:
        """How the start ended, in a few words."""
        if not self.failures:
            return "started" if self.is_ready else "no end in the log"
        phase = self.failures[-1].phase
        return "failed" + (f" ({phase})" if phase else "")

    def __str__(self) -> str:
        port = f", port {self.port}" if self.port else ""
        return f"line {self.line}: {self.model or 'no model named'}{port}, {self.outcome}"


def read_starts(lines: Iterable[str]) -> tuple[StartupLog, ...]:
    """Parse the starts in these lines, which may have prefixes or colours, or be JSON, or CSV."""
    router = _Router()
    for line in read_lines(lines):
        router.take(line)
    gpu = next(filter(None, (draft.facts.get("gpu") for draft in router.drafts)), None)
    every = (one for one in router.drafts if one.has_own_facts or one.failures or one.others)
    return tuple(replace(one.to_log(), gpu=gpu) for one in every)


def last_failed(starts: Sequence[StartupLog]) -> StartupLog:
    """Return the last start that failed, or else the last; an empty one without any."""
    return ([one for one in starts if one.failures] or list(starts) or [StartupLog()])[-1]


# Facts of one line. Numbers are bounded, so that Python never refuses to parse one.

_N: Final = r"-?\d{1,15}(?:\.\d{1,20})?"
_COUNT: Final = r"\d{1,3}(?:,\d{3}){1,5}|\d{1,15}"
_UNITS: Final = {"bytes": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "GB": GIB}
_SIZE: Final = rf"({_N} ?(?:GiB|MiB|KiB|bytes|B))\b"


def _nbytes(size: str) -> int:
    number, unit = re.fullmatch(rf"({_N}) ?(\w*)", size, re.ASCII).groups()  # type: ignore[union-attr]
    return round(float(number) * _UNITS[unit or "GiB"])


def _count(number: str) -> int:
    return int(number.replace(",", ""))


_GPU: Final = r"((?:NVIDIA|Tesla|Quadro) [\w -]{1,60}?)"
_BATCHED, _SHARE = "max_num_batched_tokens", "gpu_memory_utilization"
_ON_STARTUP, _ONE = "on startup", "To serve at least one request"
_STORED: Final = "number of tokens that can be stored in KV cache"
# (field, marker in the line, pattern whose only group is the value, parser).
_FACTS: Final[tuple[tuple[str, str, re.Pattern[str], Callable[[str], object]], ...]] = tuple(
    (name, mark, re.compile(pattern, re.ASCII), read)
    for name, mark, pattern, read in (
        ("vllm_version", "LLM engine (v", r"LLM engine \(v([^)]{1,80})\)", str),
        # The banner, by 0.17, and its replacement with VLLM_DISABLE_LOG_LOGO.
        ("vllm_version", "█  version ", r"█  version (\S{1,80})", str),
        ("vllm_version", "server version ", r"server version ([^\s,]{1,80})", str),
        ("model", "vLLM server version ", r", serving model (\S.{0,300})", str),
        ("model", "█  model ", r"█  model {2,4}(\S.{0,300})", str),
        ("model", "Starting to load model", r"load model (\S{1,300}?)\.\.\.", str),
        ("model", "LLM engine (v", r"with config: model='([^']{1,300})'", str),
        ("architecture", "Resolved architecture:", r"architecture: (\w{1,100})", str),
        ("platform", "Automatically detected platform", r"platform (\w{1,20})", str),
        # Of newer releases, which detect it silently; ROCm's device is called cuda.
        ("platform", "device_config=", r"device_config=(cpu|xpu|tpu)\b", str),
        ("platform", "HIP out of memory", r"(HIP) out of memory", lambda _: "rocm"),
        ("platform", "ROCM_", r"\b(ROCM)_[A-Z]", str.lower),
        # collect_env, nvidia-smi -L and nvidia-smi, pasted with the log.
        ("gpu", "GPU 0: ", rf"GPU 0: {_GPU} ?(?:\(|GPU \d|$)", str),
        ("gpu", "  0  ", rf"^\|   0  {_GPU} {{1,40}}O(?:n|ff) ", str),
        ("port", "server ", r"server (?:\d{1,4} )?on https?://[\w.:\[\]-]{1,80}:(\d{1,5})\b", int),
        ("max_model_len", "Using max model len", rf"max model len ({_COUNT})", _count),
        ("max_model_len", "LLM engine (v", r"\bmax_seq_len=(\d{1,15})\b", _count),
        ("max_model_len", "max seq len (", rf"max seq len \(({_COUNT})\)", _count),
        ("max_model_len", "Auto-fit max_model_len: red", rf" to ({_COUNT}) to", _count),
        (_BATCHED, "Chunked prefill is enabled", rf"max_num_batched_tokens=({_COUNT})", _count),
        (_SHARE, "esired GPU memory utilization", rf"utilization (?:is )?\(({_N}),", float),
        (_SHARE, "can use ", rf"x gpu_memory_utilization \(({_N})\)", float),  # of 0.9
        (_SHARE, "external process's weights", rf"weights \(({_N}),", float),
        (_SHARE, "current --gpu-memory-utilization=", rf"memory-utilization=({_N})", float),
        ("total_bytes", _ON_STARTUP, rf"\({_N}/({_N} GiB)\)\s+on startup", _nbytes),
        ("total_bytes", "can use ", rf"use total_gpu_memory \(({_N} ?GiB)\)", _nbytes),  # of 0.9
        ("total_bytes", "memory snapshot: ", rf"total_memory=({_N}GiB)", _nbytes),
        ("free_bytes", "Initial free memory: ", rf"free memory: ({_N} GiB)", _nbytes),
        ("free_bytes", _ON_STARTUP, rf"\(({_N})/{_N} GiB\)\s+on startup", _nbytes),
        ("wanted_bytes", "esired GPU memory utilization", rf"\({_N}, ({_N} GiB)\)", _nbytes),
        ("wanted_bytes", "Requested memory: ", rf"\(util\), ({_N} GiB)", _nbytes),
        ("weights_bytes", " took ", rf"odel (?:loading|weights) took ({_N} ?Gi?B)", _nbytes),
        ("weights_bytes", "Actual usage is", rf"usage is ({_N} GiB) for weight", _nbytes),
        ("consumed_bytes", "Actual usage is", rf"usage is ({_N} GiB) for consumed", _nbytes),
        ("activation_bytes", "Actual usage is", rf"({_N} GiB) for (?:PyTorch act|peak)", _nbytes),
        ("non_torch_bytes", "Actual usage is", rf"({_N} GiB) for non-torch", _nbytes),
        ("graphs_bytes", "Estimated CUDA graph memory", rf"memory: ({_N} GiB)", _nbytes),
        ("graphs_bytes", "Graph capturing finished", rf"took ({_N} GiB)", _nbytes),
        ("kv_cache_bytes", "Available KV cache memory:", rf"memory: {_SIZE}", _nbytes),
        ("kv_cache_bytes", "reserved for KV Cache is", rf"Cache is ({_N} ?GiB)", _nbytes),  # of 0.9
        # kv_cache_memory_bytes: vLLM did not profile for it.
        ("kv_cache_bytes", "specified by kv_cache_memory", rf"reserved ({_N} ?GiB) mem", _nbytes),
        ("kv_cache_bytes", _ONE, rf"KV cache memory \(({_N} Gi?B)\)", _nbytes),
        ("kv_cache_tokens", "KV cache size:", rf"size: ({_COUNT}) tokens", _count),
        ("needed_bytes", "KV cache is needed", rf"({_N} Gi?B) KV cache is needed", _nbytes),
        ("encoder_budget_tokens", "Encoder cache will be", rf"budget of ({_COUNT}) tok", _count),
        ("profiled_items", "Encoder cache will be", rf"with ({_COUNT}) \w+ items", _count),
        ("profiled_modality", "Encoder cache will be", r"with \d{1,9} (\w{1,20}) items", str),
        ("longest_context", "maximum model length is", rf"model length is ({_COUNT})", _count),
        ("longest_context", "the derived max_model_len", r"len \(\w{1,40}=(\d{1,15})", int),
        # By 0.8.
        ("longest_context", _STORED, rf"stored in KV cache \(({_COUNT})\)", _count),
        ("least_batched_tokens", "MM input disabled", rf"mm_item \(({_COUNT})\)", _count),
        ("least_batched_tokens", "pre-allocated encoder", rf"(?:with|length) ({_COUNT})\b", _count),
        ("least_batched_tokens", "equal to max_num_seqs", rf"num_seqs \(({_COUNT})\)", _count),
        ("least_batched_tokens", "than max_model_len", rf"than max_model_len \(({_COUNT})", _count),
        ("longest_context", "smaller than max_model", rf"\(({_COUNT})\) is smaller", _count),
        ("most_sequences", "available Mamba cache", rf"cache blocks \(({_COUNT})\)", _count),
        ("most_sequences", "Lower max_num_seqs", rf"to at most ({_COUNT})", _count),  # mmcalib's
        ("warmed_sequences", "when warming up", rf"with ({_COUNT}) dummy requests", _count),
    )
)
# Of lines that name no worker the largest of these counts, and the smallest of other bytes.
_LARGEST: Final = ("weights_bytes", "consumed_bytes", "activation_bytes", "non_torch_bytes")
_SMALLEST: Final = ("kv_cache_tokens", "max_model_len")

_OF_OOM: Final = {
    name: re.compile(pattern, re.ASCII)
    for name, pattern in (
        ("tried_bytes", rf"^ {_SIZE}"),
        ("total_bytes", rf"total capac\w{{1,4}} of {_SIZE}"),
        ("free_bytes", rf"of which {_SIZE} is free"),
        ("allocated_bytes", rf"Of the allocated memory {_SIZE} is allocated by PyTorch"),
        ("graph_pools_bytes", rf"with {_SIZE} allocated in private pools"),
        ("unallocated_bytes", rf"{_SIZE} is reserved by PyTorch but unallocated"),
        # Alone, in a container, that process is the server.
        ("others_bytes", rf"Process \d{{1,10}} has {_SIZE} memory in use\. Including non-PyTorch"),
    )
}
# Without figures: the driver or a library, not PyTorch's allocator, ran out.
_BARE = re.compile(
    r"\b(?:CUDA|HIP|XPU)(?: driver)? [Ee]rror: out of memory|_STATUS_ALLOC_FAILED"
    r"|NCCL WARN Cuda failure (?:\d )?'out of memory'"
)
# Other reasons why a server ends or rejects a request: the phase in which only this happens, and
# the known GPU memory if it ran out.
_FAILURES: Final[tuple[tuple[str, Phase | None, OutOfMemory | None], ...]] = (
    ("out of memory occurred when warming up", None, OutOfMemory()),
    ("No available memory for the cache blocks", "kv cache", None),
    (_ONE, "kv cache", None),
    (_STORED, "kv cache", None),
    ("Cannot auto-fit max_model_len", "kv cache", None),
    ("exceeds available Mamba cache blocks", "cuda graphs", None),
    ("on startup is less than", "start", None),
    ("on kv cache allocation is less than", "kv cache", None),
    ("Externally held weights on device", "start", None),
    ("Error in memory profiling", "profile", None),
    ("frontend multimodal GPU decoding reserves", "kv cache", None),
    ("which exceeds the pre-allocated encoder cache", "serving", None),
    ("Chunked MM input disabled", "start", None),
    ("is greater than the derived max_model_len", "start", None),
    ("must be greater than or equal to max_num_seqs", "start", None),
    ("This effectively limits the maximum sequence length", "start", None),
    ("must be divisible by tensor parallel size", "start", None),
)
_QUOTED_CHARS: Final = 400
# Any other exception, such as a missing package; what only leads to one; last words of others.
_OTHER = re.compile(r"^(?:\[rank\d+\]: +)?[\w.]{0,300}(?:Error|Exception|Failed|Interrupt)(?::|$)")
_REFERS = re.compile(r"See (?:root|stack)|Traceback \(m|in subprocess|models\.registry|Cancelled")
_ERRORS: Final = ("ERROR", "CRITICAL")
# A process ended without an exception: by vLLM, a shell, the kernel and Kubernetes.
DIED = re.compile(
    r"died unexpectedly|killed by signal|proc\(s\): \{[^}]{1,300}: -9\b|OOMKilled"
    r"|^Killed\b|\d Killed\b|: Killed process"
)
_LAST_WORDS = re.compile(
    rf"while attempting to bind on|\b(?:vllm|serve|api_server\.py): error: |{DIED.pattern}"
)


def _failure(line: Line) -> tuple[object, Failure] | None:
    """Parse the failure in a line, after the key that equal failures share; else None."""
    quoted = line.text[:_QUOTED_CHARS]
    if (oom := _out_of_memory(line)) is not None:
        return oom, Failure(quoted, None, oom)
    causes = (one for one in _FAILURES if one[0] in line.text and not quoted.startswith("raise "))
    return next(((mark, Failure(quoted, phase, of)) for mark, phase, of in causes), None)


def _out_of_memory(line: Line) -> OutOfMemory | None:
    if "Tried to allocate" not in line.text:
        is_near = "out of memory" in line.text or "ALLOC_FAILED" in line.text
        return OutOfMemory() if is_near and _BARE.search(line.text) else None
    # The next message belongs to another failure.
    _, own, *_ = " ".join([line.text, *line.ahead]).split("Tried to allocate", 2)
    sizes = {n: _nbytes(m[1]) for n, pattern in _OF_OOM.items() if (m := pattern.search(own))}
    return OutOfMemory(**sizes) if "tried_bytes" in sizes else None


# The phase of a server, from traceback frames or from the last line that names it.

# Function names of vllm/v1/worker. The first group with a frame in the traceback decides:
_ENCODER: Final = {
    *("embed_multimodal", "get_multimodal_embeddings", "_profile_multimodal"),
    *("_execute_mm_encoder", "execute_mm_encoder", "profile_encoder_cache", "_get_mm_dummy_batch"),
    *("_process_image_input", "_process_video_input", "_process_audio_input"),
}
# In the profile, and in the warm-up.
_SAMPLER: Final = {"_dummy_sampler_run", "_dummy_pooler_run"}
_FRAMES: Final[tuple[tuple[Phase, tuple[str, ...]], ...]] = (
    ("cuda graphs", ("capture_model", "profile_cudagraph_memory", "_capture_cudagraphs")),
    ("profile", ("profile_run", "determine_available_memory")),
    ("weights", ("load_model", "get_model", "initialize_model", "_initialize_model")),
    ("kv cache", ("initialize_kv_cache", "_allocate_kv_cache", "_allocate_kv_cache_tensors")),
    ("kv cache", ("check_enough_kv_cache_memory", "_check_enough_kv_cache_memory")),
    ("warm-up", ("compile_or_warm_up_model", "warmup_kernels")),
    ("serving", ("run_busy_loop", "execute_model", "sample_tokens", "_process_engine_step")),
    # The profile encodes without it.
    ("serving", ("_execute_mm_encoder",)),
)
_OWN = re.compile(
    r"\bvllm/(?:v1|engine|entrypoints|executor|worker|distributed)/|\bvllm(?: serve)?: error: "
)
_PROCESSES: Final = ("EngineCore", "APIServer", "VllmWorker", "Worker")
_FRAME = re.compile(r'File "[^"]{1,500}", line \d{1,9}, in (\w{1,100})', re.ASCII)
# Lines that announce the phase after them.
_MILESTONES: Final[tuple[tuple[str, Phase], ...]] = (
    ("Starting to load model", "weights"),
    ("Model loading took", "profile"),
    ("Encoder cache will be initialized", "profile: encoder"),
    ("Skipping memory profiling for multimodal", "profile: language model"),
    ("Dynamo bytecode transform time", "profile: language model"),
    ("Profiling CUDA graph memory", "cuda graphs"),
    ("Available KV cache memory", "kv cache"),
    ("KV cache size:", "cuda graphs"),
    ("Graph capturing finished", "warm-up"),
    ("init engine (profile", "serving"),
    ("Application startup complete", "serving"),
)


# One pass over the lines. Each belongs to a start, by its source and process.

# If one of these follows a loaded model or a failed start, a server starts again.
# Not "V1 LLM engine": an engine that fails prints its configuration too.
_STARTS: Final = ("API server version", NON_DEFAULT, "Initializing a V")
# Maximum of arguments, errors and processes: far more than a start of a thousand workers prints.
_MOST: Final = 20_000
_ENGINE_MODEL = re.compile(r"with config: model='([^']{1,300})'", re.ASCII)


@dataclass(slots=True)
class _Router:
    """The starts so far, and the one that each process of a source belongs to."""

    drafts: list[_Draft] = field(default_factory=list)
    owners: dict[tuple[str, str | None], _Draft] = field(default_factory=dict)

    def take(self, line: Line) -> None:
        draft = self._owner(line)
        if draft is None or draft.is_over_at(line):
            draft = self._begin(line)
        if len(self.owners) < _MOST:
            self.owners[line.source, line.process] = draft
        self.owners[line.source, None] = draft
        draft.take(line)

    def _begin(self, line: Line) -> _Draft:
        draft = _Draft(line.number, line.source)
        self.drafts.append(draft)
        del self.drafts[:-_MOST]
        kept = (key for key, one in self.owners.items() if key[0] != line.source or not one.is_over)
        self.owners = {key: self.owners[key] for key in kept}
        return draft

    def _owner(self, line: Line) -> _Draft | None:
        if line.process is None or (line.source, line.process) in self.owners:
            return self.owners.get((line.source, line.process))
        own = [one for one in self.drafts if one.source == line.source and not one.is_over]
        name = line.process.partition(" pid=")[0]
        lacking = [one for one in own if name not in one.processes]
        if model := _ENGINE_MODEL.search(line.text):
            named = [one for one in lacking if one.engine_args.get("model") == model[1]]
            lacking = named or lacking
        last = self.owners.get((line.source, None))
        is_another = name == "APIServer" and last is not None and name in last.processes
        return next(iter(lacking), None if is_another else last)


@dataclass(slots=True)
class _Draft:
    """Facts about one start; each failure with whether it tells its phase itself."""

    line: int
    source: str
    facts: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    short_worker: str | None = None
    engine_args: dict[str, Value] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)
    failures: dict[object, tuple[Failure, bool]] = field(default_factory=dict)
    frames: dict[str | None, set[str]] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    others: list[Failure] = field(default_factory=list)
    refused: str = ""
    erred: str | None = None
    phase: Phase | None = None
    announced: set[Phase | None] = field(default_factory=set)
    named: bool = False
    is_chained: bool = False
    serves: bool = False
    is_mixed: bool = False

    def is_over_at(self, line: Line) -> bool:
        """Check whether a line belongs to another start."""
        if "Starting to load model" in line.text:
            return "kv_cache_bytes" in self.facts
        again = self.engine_args and (self.others or self.phase) and "Initializing" not in line.text
        return bool(self.is_over or again) and any(mark in line.text for mark in _STARTS)

    @property
    def is_over(self) -> bool:
        return "profile" in self.announced or bool(self.failures)

    @property
    def has_own_facts(self) -> bool:
        """Check for a fact or a failure that only vLLM prints."""
        facts = self.facts.keys() - {"platform", "port", "gpu", "total_bytes"}
        of_vllm = any(one.oom is None for one, _ in self.failures.values())
        return bool(facts or self.engine_args or self.unread or of_vllm)

    def take(self, line: Line) -> None:
        if line.process is not None and len(self.processes) < _MOST:
            self.processes.setdefault(line.process.partition(" pid=")[0], line.process)
        self.named |= line.level is not None or (line.process or "").startswith(_PROCESSES)
        self.named |= "vllm" in line.text and bool(_OWN.search(line.text))
        if NON_DEFAULT in line.text:
            every = list(read_arguments(line.text))[: _MOST - len(self.engine_args)]
            said = {name: value for name, value, literal in every if literal}
            speaks_again = line.process in (None, self.processes.get("APIServer"))
            self.is_mixed |= speaks_again and self.engine_args not in ({}, said)
            self.engine_args |= said
            self.unread |= {name: None for name, _, literal in every if not literal}
        for name, mark, pattern, read in _FACTS:
            if mark in line.text and (match := pattern.search(line.text)):
                self._add_fact(name, read(match.group(1)), line.process)
        self._update_phase(line)
        self._collect_frames(line)
        # All lines of a server that serves name their process, if one does; others are a client's.
        is_bare = line.process is None and line.level is None and not _LAST_WORDS.search(line.text)
        if self.serves and self.processes and is_bare:
            return
        self._collect_other(line)
        if (failure := _failure(line)) is not None:
            self._add_failure(*failure, line)

    def _add_fact(self, name: str, value: Any, process: str | None) -> None:
        """Keep the first statement, or the tightest of bytes and of the KV cache's tokens."""
        if not name.endswith("_bytes") and name not in _SMALLEST:
            self.facts.setdefault(name, value)
        else:
            known = [self.facts]
            if process is not None and len(self.workers) < _MOST:
                known.append(self.workers.setdefault(process, {}))
            tightest = max if name in _LARGEST else min
            for facts in known:
                facts[name] = tightest(facts.get(name, value), value)

    def _facts_of_one_worker(self) -> dict[str, Any]:
        """The facts; of workers, those of the one that ran out of memory, else of the one with the
        least room. The ranks of a pipeline differ.
        """
        loaded = {name: one for name, one in self.workers.items() if "weights_bytes" in one}

        def room(name: str) -> tuple[float, ...]:
            figures = (loaded[name].get(n, math.inf) for n in ("kv_cache_bytes", "free_bytes"))
            return name != self.short_worker, *figures, -loaded[name]["weights_bytes"]

        of_workers = {name for one in loaded.values() for name in one}
        own = loaded[min(loaded, key=room)] if loaded else {}
        return {n: value for n, value in self.facts.items() if n not in of_workers} | own

    def _update_phase(self, line: Line) -> None:
        if line.level in _ERRORS:
            return
        phase = next((phase for mark, phase in _MILESTONES if mark in line.text), None)
        if line.process == self.erred and (phase or any(mark in line.text for mark in _STARTS)):
            # It goes on, so what it met was no end.
            self.others.clear()
        self.serves |= "Application startup complete" in line.text
        self.phase = phase or self.phase
        self.announced.add(self.phase)

    def _collect_frames(self, line: Line) -> None:
        if "Traceback (most recent call last)" in line.text:
            self.frames[line.process] = set()
        elif line.level == "INFO":
            self.frames.pop(line.process, None)
        frame = _FRAME.search(line.text) if 'File "' in line.text else None
        if frame and len(self.frames) < _MOST:
            frames = self.frames.setdefault(line.process, set())
            frames |= {frame.group(1)} if len(frames) < _MOST else set()

    def _collect_other(self, line: Line) -> None:
        """Keep the first other error and the last that it led to, unless a request met them."""
        self.serves &= "EngineCore encountered a fatal error" not in line.text
        self.is_chained |= "above exception" in line.text
        is_error = line.level in (None, *_ERRORS) and _OTHER.match(line.text)
        if not _LAST_WORDS.search(line.text) and (self.serves or not is_error):
            self.refused = line.text[:_QUOTED_CHARS] if is_error else self.refused
            return
        ahead = line.ahead[: 2 if "validation error" in line.text else 0]
        phase = self._phase_of_traceback(line) or self.phase
        phase = phase or ("start" if self.has_own_facts else None)
        failure = Failure(" ".join((line.text, *ahead))[:_QUOTED_CHARS], phase, is_other=True)
        first = [one for one in self.others[:1] if not _REFERS.search(one.text)]
        if not first or (self.is_chained and not _REFERS.search(line.text)):
            self.others, self.erred = [*first, failure], line.process
        self.is_chained = False

    def _add_failure(self, key: object, failure: Failure, line: Line) -> None:
        if failure.oom and failure.oom.total_bytes is not None:
            self.short_worker = self.short_worker or line.process
            self._add_fact("total_bytes", failure.oom.total_bytes, line.process)
        phase = failure.phase or self._phase_of_traceback(line)
        known, is_certain = self.failures.get(key, (failure, False))
        is_better = (phase and not is_certain) or key not in self.failures
        if is_better and len(self.failures) < _MOST:
            self.failures[key] = replace(known, phase=phase or self.phase), bool(phase)

    def _phase_of_traceback(self, line: Line) -> Phase | None:
        """The phase that the functions of this line's traceback show; None if unknown."""
        if "Failed to load model" in line.text:
            return "weights"
        seen = self.frames.get(line.process, set())
        phase = next((phase for phase, names in _FRAMES if not seen.isdisjoint(names)), None)
        if seen & _ENCODER and phase in ("profile", "serving"):
            return "profile: encoder" if phase == "profile" else "serving: encoder"
        if phase in (None, "profile") and seen & _SAMPLER:
            is_late = self.announced & {"cuda graphs", "warm-up"}
            return "warm-up" if is_late else "profile: sampler"
        if phase == "profile" and "_dummy_run" in seen:
            return "profile: language model"
        # The engine's own frames only show that its workers profiled.
        is_known = phase == "profile" and (self.phase or "").startswith("profile:")
        return self.phase if is_known else phase

    def to_log(self) -> StartupLog:
        if isinstance(model := self.engine_args.get("model"), str):
            self.facts.setdefault("model", model)
        if isinstance(port := self.engine_args.get("port"), int):
            self.facts["port"] = port
        caches = [one["kv_cache_bytes"] for one in self.workers.values() if "kv_cache_bytes" in one]
        # Equal workers differ by less, if nothing else uses their GPUs.
        if caches and max(caches) - min(caches) > GIB // 4:
            self.facts["other_kv_cache_bytes"] = max(caches)
        return StartupLog(
            line=self.line,
            **self._facts_of_one_worker(),
            engine_args=self.engine_args,
            unread_args=tuple(self.unread),
            failures=tuple(one for one, _ in self.failures.values()) or tuple(self.others),
            phase=self.phase,
            refused=self.refused,
            is_ready="serving" in self.announced,
            is_vllm=self.named or self.has_own_facts,
            is_mixed=self.is_mixed,
        )
