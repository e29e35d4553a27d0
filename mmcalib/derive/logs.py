"""Read a vLLM server's log: model, arguments, GPU memory, and why it ended (0.9 to 0.33).

`read_log` never fails on a line; facts that a log does not state stay None.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from mmcalib.text import GIB, KIB, MIB

Phase = Literal[
    "start",
    "weights",
    "profile",
    "profile: encoder",
    "profile: language model",
    "profile: sampler",
    "kv cache",
    "cuda graphs",
    "warm-up",
    "serving",
    "serving: encoder",
]
Value = bool | int | float | str | list[object] | dict[object, object] | None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """PyTorch ran out of GPU memory. All in bytes, None if not in the message."""

    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    graph_pools_bytes: int | None = None
    unallocated_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One error, even if repeated; `oom` if the GPU's memory ran out."""

    text: str
    phase: Phase | None
    oom: OutOfMemory | None = None

    def __str__(self) -> str:
        return self.text + (f" ({self.phase})" if self.phase else "")


@dataclass(frozen=True, slots=True)
class StartupLog:
    """The last start in a log; None and empty if unknown. `engine_args` are the arguments set, with
    secrets; `max_model_len` and the two after it are the engine's; bytes are the smallest of all
    workers; `most_sequences` is the `max_num_seqs` that vLLM's error allows.
    """

    vllm_version: str | None = None
    model: str | None = None
    architecture: str | None = None
    engine_args: dict[str, Value] = field(default_factory=dict)
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    kv_cache_bytes: int | None = None
    most_sequences: int | None = None
    failures: tuple[Failure, ...] = ()
    starts: int = 0


def read_log(lines: Iterable[str]) -> StartupLog:
    """Parse the last start in these lines: with any prefixes, in JSON or CSV, coloured, wrapped."""
    draft, starts = _Draft(), 0
    for line in _lines(lines):
        if draft.is_over_at(line.text):
            starts, draft = starts + 1, _Draft()
        draft.take(line)
    return draft.to_log(starts + 1 if draft.has_facts else starts)


# Lines, without the wrapping of loggers, terminals and containers.

# Lines to join if a terminal or an issue tracker wrapped a message.
_AHEAD: Final = 8
# Characters to search for process and head: the rest of a line can be a whole configuration.
_FRONT_CHARS: Final = 400
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|ESC\[[0-9;]*m")
# `(EngineCore_0 pid=72)`, `(VllmWorker rank=1 pid=12)`, `(Worker_TP0 pid=7286)`,
# `(RayWorkerWrapper pid=1463574, ip=10.0.0.60)`; nested ones follow each other.
_PROCESS = re.compile(r"\(([A-Za-z][\w.]{0,60}(?: rank=\d{1,6})? pid=\d{1,12}[^()]{0,60})\) ?")
# `INFO 09-23 18:12:33 [gpu_worker.py:298] `; with DEBUG the path in the package.
_HEAD = re.compile(
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})? "
    r"(?:\[?[\w./]{1,200}\.py:\d{1,6}\] ?)?"
)


@dataclass(frozen=True, slots=True)
class _Line:
    """`process` is the innermost in the prefix; `ahead` are the texts of the next lines."""

    text: str
    process: str | None
    level: str | None
    ahead: tuple[str, ...] = ()

    def message(self, complete: str) -> str:
        """The text, joined with the next lines if it ends before `complete`."""
        return self.text if complete in self.text else " ".join([self.text, *self.ahead])


# Keys under which collectors store a line: Docker, Cloud Logging, Loki, CloudWatch, journald, and
# vLLM's own JSON formatter. One JSON line may be spread over several.
_MESSAGES: Final = ("log", "message", "line", "msg", "textPayload", "@message", "MESSAGE", "body")
_FIELD = re.compile(rf'\s*"(?:{"|".join(_MESSAGES)})"\s*:\s*(".*"),?\s*')
_DEEPEST: Final = 6
# A row whose first cells are short and unquoted, up to a quoted one.
_ROW = re.compile(r'(?:[^",()]{0,80},){0,8}"')
# Lines that determine a terminal's width: none is longer, and several are as long; for a usual
# width, one is enough.
_WIDTH_LINES: Final = 500
_WIDTHS: Final = range(60, 401)
_USUAL_WIDTHS: Final = (80, 100, 120, 132, 160)
_LEAST_FULL: Final = 3


def _unpack(text: str) -> Iterator[str]:
    """Yield the lines inside a line of JSON or CSV; any other unchanged."""
    inner: list[str] = []
    with contextlib.suppress(ValueError, RecursionError, csv.Error):
        if text.lstrip()[:1] in ("{", "["):
            inner = list(_messages(json.loads(text)))
        elif field := _FIELD.fullmatch(text):
            inner = [json.loads(field[1])]
        elif _ROW.match(text):
            inner = [max(next(csv.reader([text], strict=True)), key=len)]
    for one in inner or [text]:
        yield from one.splitlines()


def _messages(record: object, deepest: int = _DEEPEST) -> Iterator[str]:
    match record:
        case [str(moment), str(line)] if moment.isdigit():
            yield line
        case dict() | list() if deepest:
            fields = record if isinstance(record, dict) else {}
            texts = (fields[name] for name in _MESSAGES if isinstance(fields.get(name), str))
            if (message := next(texts, None)) is not None:
                yield message
                return
            for value in fields.values() if fields else record:
                yield from _messages(value, deepest - 1)


def _unwrap(raw: Iterable[str]) -> Iterator[str]:
    """Join lines that a terminal broke at its width, even within a word."""
    lines = (clean.rstrip() for text in raw for clean in _unpack(_COLOUR.sub("", text)))
    first = list(itertools.islice(lines, _WIDTH_LINES))
    width = max(map(len, first), default=0)
    full = sum(len(line) == width for line in first)
    least = 1 if width in _USUAL_WIDTHS else max(_LEAST_FULL, len(first) // 20)
    if width not in _WIDTHS or full < least:
        yield from itertools.chain(first, lines)
        return
    whole, last = "", 0
    for line in itertools.chain(first, lines):
        # Copying drops a blank at the break.
        if last < width - 1 or _HEAD.match(line) or _PROCESS.match(line):
            yield whole
            whole = line
        else:
            whole += line if last == width else f" {line}"
        last = len(line)
        if len(whole) > _MOST_CHARS:
            last = 0
    yield whole


def _lines(raw: Iterable[str]) -> Iterator[_Line]:
    waiting: deque[_Line] = deque()
    for text in _unwrap(raw):
        waiting.append(_line(text))
        if len(waiting) > _AHEAD:
            yield replace(waiting.popleft(), ahead=tuple(line.text for line in waiting))
    while waiting:
        yield replace(waiting.popleft(), ahead=tuple(line.text for line in waiting))


def _line(raw: str) -> _Line:
    clean = raw.replace("\x00", "").rstrip()
    front = clean[:_FRONT_CHARS]
    head = _HEAD.search(front)
    processes = list(_PROCESS.finditer(front[: head.start()] if head else front))
    prefix = head or (processes[-1] if processes else None)
    return _Line(
        text=clean[prefix.end() if prefix else 0 :].strip(),
        process=processes[-1].group(1) if processes else None,
        level=head.group(1) if head else None,
    )


# Arguments that the user set.

# A configuration is about 6,000 characters; a much longer text is something else.
_MOST_CHARS: Final = 100_000
# Bytes and tokens are far below this.
_NUMBER_BELOW: Final = 2**63
_OPEN, _CLOSE, _QUOTES = "([{<", ")]}>", "'\""
_NON_DEFAULT: Final = "non-default args: {"
# Quoted logs have "..." for omitted parts.
_KEY = re.compile(r"\s*(?:\.{3}\s*)?'([A-Za-z_]\w{0,60})'\s*:\s*")


def _arguments(text: str) -> dict[str, Value]:
    """Parse "non-default args: {...}"."""
    args: dict[str, Value] = {}
    _, _, body = text.partition(_NON_DEFAULT)
    for part in _parts(body[:_MOST_CHARS]):
        if key := _KEY.match(part):
            args[key.group(1)] = _value(part[key.end() :].strip())
    return args


def _parts(text: str) -> Iterator[str]:
    """Split at the outermost commas, up to the closing brace."""
    depth, quote, start = 0, "", 0
    for position, character in enumerate(text):
        if quote:
            if character == quote and text[position - 1] != "\\":
                quote = ""
        elif character in _QUOTES:
            quote = character
        elif depth == 0 and character == "}":
            yield text[start:position]
            return
        elif character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth = max(depth - 1, 0)
        elif character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _value(text: str) -> Value:
    """Parse a literal that JSON can represent; any other text stays text."""
    try:
        value: Value = ast.literal_eval(text)
        written = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        is_json = json.loads(written) == value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError):
        return text
    return value if is_json and _is_sane(value) else text


def _is_sane(value: object) -> bool:
    """Check that every number is plausible for a setting."""
    match value:
        case int() | float():
            return abs(value) < _NUMBER_BELOW
        case list():
            return all(map(_is_sane, value))
        case dict():
            return all(map(_is_sane, value.values()))
        case _:
            return True


# Facts of one line. Numbers are bounded, so that Python never refuses to parse one.

_N: Final = r"-?\d{1,15}(?:\.\d{1,20})?"
_COUNT: Final = r"\d{1,3}(?:,\d{3}){1,5}|\d{1,15}"
_UNITS: Final = {"bytes": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_SIZE: Final = rf"({_N} ?(?:GiB|MiB|KiB|bytes|B))\b"


def _nbytes(size: str) -> int:
    number, unit = re.fullmatch(rf"({_N}) ?(\w+)", size, re.ASCII).groups()  # type: ignore[union-attr]
    return round(float(number) * _UNITS[unit])


def _count(number: str) -> int:
    return int(number.replace(",", ""))


_BATCHED, _SHARE = "max_num_batched_tokens", "gpu_memory_utilization"
# (field, marker in the line, pattern whose only group is the value, parser).
_FACTS: Final[tuple[tuple[str, str, re.Pattern[str], Callable[[str], object]], ...]] = tuple(
    (name, mark, re.compile(pattern, re.ASCII), read)
    for name, mark, pattern, read in (
        ("vllm_version", "API server version", r"API server version (\S{1,80})", str),
        ("vllm_version", "LLM engine (v", r"LLM engine \(v([^)]{1,80})\)", str),
        # The banner, by 0.17, and its replacement with VLLM_DISABLE_LOG_LOGO.
        ("vllm_version", "█  version ", r"█  version (\S{1,80})", str),
        ("vllm_version", "vLLM server version ", r"server version ([^\s,]{1,80})", str),
        ("model", "vLLM server version ", r", serving model (\S.{0,300})", str),
        ("model", "█  model ", r"█  model {2,4}(\S.{0,300})", str),
        ("model", "Starting to load model", r"load model (\S{1,300}?)\.\.\.", str),
        ("model", "LLM engine (v", r"with config: model='([^']{1,300})'", str),
        ("architecture", "Resolved architecture:", r"architecture: (\w{1,100})", str),
        ("max_model_len", "Using max model len", rf"max model len ({_COUNT})", _count),
        ("max_model_len", "LLM engine (v", r"\bmax_seq_len=(\d{1,15})\b", _count),
        ("fitted_max_model_len", "Auto-fit max_model_len: red", rf" to ({_COUNT}) to", _count),
        (_BATCHED, "Chunked prefill is enabled", rf"max_num_batched_tokens=({_COUNT})", _count),
        (_SHARE, "esired GPU memory utilization", rf"utilization (?:is )?\(({_N}),", float),
        (_SHARE, "current --gpu-memory-utilization=", rf"memory-utilization=({_N})", float),
        ("total_bytes", "on startup", rf"\({_N}/({_N} GiB)\)\s+on startup", _nbytes),
        (
            "free_bytes",
            "on startup",
            rf"\(({_N})/{_N} GiB\)\s+on startup",
            lambda n: _nbytes(f"{n} GiB"),
        ),
        ("kv_cache_bytes", "Available KV cache memory:", rf"memory: {_SIZE}", _nbytes),
        # kv_cache_memory_bytes: vLLM did not profile for it.
        ("kv_cache_bytes", "specified by kv_cache_memory", rf"reserved ({_N} ?GiB) mem", _nbytes),
        ("most_sequences", "lower max_num_seqs to at most", rf"seqs to at most ({_COUNT})", _count),
    )
)

_TRIED = re.compile(rf"Tried to allocate {_SIZE}", re.ASCII)
_OF_OOM: Final = {
    name: re.compile(pattern, re.ASCII)
    for name, pattern in (
        ("total_bytes", rf"total capac\w{{1,4}} of {_SIZE}"),
        ("free_bytes", rf"of which {_SIZE} is free"),
        ("allocated_bytes", rf"Of the allocated memory {_SIZE} is allocated by PyTorch"),
        ("graph_pools_bytes", rf"with {_SIZE} allocated in private pools"),
        ("unallocated_bytes", rf"{_SIZE} is reserved by PyTorch but unallocated"),
    )
}
# Without figures: the driver, not PyTorch's allocator, ran out.
_BARE = re.compile(r"\b(?:CUDA|HIP|XPU)(?: driver)? error: out of memory")
# Other reasons why a server ends or rejects a request: the phase in which only this happens, and
# the known GPU memory if it ran out.
_FAILURES: Final[tuple[tuple[str, Phase | None, OutOfMemory | None], ...]] = (
    ("out of memory occurred when warming up", "profile: sampler", OutOfMemory()),
    ("No available memory for the cache blocks", "kv cache", None),
    ("To serve at least one request", "kv cache", None),
    ("exceeds available Mamba cache blocks", "cuda graphs", None),
    ("on startup is less than", "start", None),
    ("Externally held weights on device", "start", None),
    ("frontend multimodal GPU decoding reserves", "kv cache", None),
    ("which exceeds the pre-allocated encoder cache", "serving", None),
    ("Chunked MM input disabled", "start", None),
    ("process was killed by signal", None, None),
)
_QUOTED_CHARS: Final = 300


def _failure(line: _Line) -> tuple[object, Failure] | None:
    """Parse the failure in a line, after the key that equal failures share; else None."""
    quoted = line.text[:_QUOTED_CHARS]
    oom = _out_of_memory(line)
    if oom is not None:
        return oom, Failure(quoted, None, oom)
    causes = (cause for cause in _FAILURES if cause[0] in line.text)
    return next(((mark, Failure(quoted, phase, of)) for mark, phase, of in causes), None)


def _out_of_memory(line: _Line) -> OutOfMemory | None:
    if "Tried to allocate" not in line.text:
        bare = "rror: out of memory" in line.text and _BARE.search(line.text)
        return OutOfMemory() if bare else None
    message = line.message("reserved by PyTorch but unallocated")
    tried = _TRIED.search(message)
    if tried is None:
        return None
    # The next message belongs to another failure.
    rest = message[tried.end() :].split("Tried to allocate", 1)[0]
    matches = {name: pattern.search(rest) for name, pattern in _OF_OOM.items()}
    sizes = {name: _nbytes(size.group(1)) for name, size in matches.items() if size}
    return OutOfMemory(_nbytes(tried.group(1)), **sizes)


# The phase of a server, from traceback frames or from the last line that names it.

# Function names of vllm/v1/worker. The first group with a frame in the traceback decides:
_ENCODER: Final = {
    *("embed_multimodal", "get_multimodal_embeddings", "_profile_multimodal"),
    *("_execute_mm_encoder", "execute_mm_encoder", "profile_encoder_cache", "_get_mm_dummy_batch"),
    *("_process_image_input", "_process_video_input", "_process_audio_input"),
}
_FRAMES: Final[tuple[tuple[set[str], Phase], ...]] = (
    ({"_dummy_sampler_run", "_dummy_pooler_run"}, "profile: sampler"),
    ({"capture_model", "profile_cudagraph_memory", "_capture_cudagraphs"}, "cuda graphs"),
    ({"profile_run", "determine_available_memory"}, "profile"),
    ({"load_model", "get_model", "initialize_model", "_initialize_model"}, "weights"),
    (
        {
            *("initialize_kv_cache", "initialize_kv_cache_tensors", "_allocate_kv_cache_tensors"),
            *("_allocate_kv_cache", "check_enough_kv_cache_memory"),
            "_check_enough_kv_cache_memory",
        },
        "kv cache",
    ),
    ({"compile_or_warm_up_model", "warmup_kernels"}, "warm-up"),
    ({"run_busy_loop", "execute_model", "sample_tokens", "_process_engine_step"}, "serving"),
)
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


def _phase_of_frames(frames: Sequence[str]) -> Phase | None:
    """The phase of a traceback by its functions; None if unknown."""
    seen = set(frames)
    phase = next((phase for names, phase in _FRAMES if seen & names), None)
    if seen & _ENCODER and phase in ("profile", "serving"):
        return "profile: encoder" if phase == "profile" else "serving: encoder"
    return "profile: language model" if phase == "profile" and "_dummy_run" in seen else phase


# One pass over the lines; a new start discards the one before.

# If one of these follows a loaded model or a failed start, a server starts again.
# Not "V1 LLM engine": an engine that fails prints its configuration too.
_STARTS: Final = ("API server version", _NON_DEFAULT, "Initializing a V")
# A traceback of a model is deep; in a recursion only the innermost frames matter.
_MOST_FRAMES: Final = 300
# Maximum of arguments, errors and processes: far more than a start of a thousand workers prints.
_MOST: Final = 20_000


@dataclass(slots=True)
class _Draft:
    """Facts about one start; `certain` failures themselves tell their phase."""

    facts: dict[str, Any] = field(default_factory=dict)
    engine_args: dict[str, Value] = field(default_factory=dict)
    failures: dict[object, Failure] = field(default_factory=dict)
    certain: set[object] = field(default_factory=set)
    frames: dict[str | None, list[str]] = field(default_factory=dict)
    phase: Phase | None = None
    loaded: bool = False

    def is_over_at(self, text: str) -> bool:
        """Check whether a line belongs to another start."""
        if "Starting to load model" in text:
            return "kv_cache_bytes" in self.facts
        return bool(self.loaded or self.failures) and any(mark in text for mark in _STARTS)

    @property
    def has_facts(self) -> bool:
        return bool(self.facts or self.engine_args or self.failures or self.loaded)

    def take(self, line: _Line) -> None:
        if _NON_DEFAULT in line.text and len(self.engine_args) < _MOST:
            self.engine_args.update(_arguments(line.text))
        for name, mark, pattern, read in _FACTS:
            if mark in line.text and (match := pattern.search(line.text)):
                self._add_fact(name, read(match.group(1)))
        self._update_phase(line)
        self._collect_frames(line)
        if (failure := _failure(line)) is not None:
            self._add_failure(*failure, line)

    def _add_fact(self, name: str, value: Any) -> None:
        """Keep the first statement; of workers' bytes, the smallest."""
        if name == "fitted_max_model_len":
            self.facts["max_model_len"] = value
        elif name.endswith("_bytes") and name in self.facts:
            self.facts[name] = min(self.facts[name], value)
        else:
            self.facts.setdefault(name, value)

    def _update_phase(self, line: _Line) -> None:
        if line.level in {"ERROR", "CRITICAL"}:
            return
        phase = next((phase for mark, phase in _MILESTONES if mark in line.text), None)
        self.loaded |= phase == "profile"
        self.phase = phase or self.phase

    def _collect_frames(self, line: _Line) -> None:
        if "Traceback (most recent call last)" in line.text or line.level == "INFO":
            self.frames.pop(line.process, None)
        frame = _FRAME.search(line.text) if 'File "' in line.text else None
        if frame and (line.process in self.frames or len(self.frames) < _MOST):
            frames = self.frames.setdefault(line.process, [])
            frames.append(frame.group(1))
            del frames[:-_MOST_FRAMES]

    def _add_failure(self, key: object, failure: Failure, line: _Line) -> None:
        if failure.oom and failure.oom.total_bytes is not None:
            self._add_fact("total_bytes", failure.oom.total_bytes)
        phase = failure.phase or self._phase_of_traceback(line)
        known = self.failures.get(key)
        if known is None and len(self.failures) < _MOST:
            self.failures[key] = replace(failure, phase=phase or self.phase)
        elif known is not None and phase and key not in self.certain:
            self.failures[key] = replace(known, phase=phase)
        if phase:
            self.certain.add(key)

    def _phase_of_traceback(self, line: _Line) -> Phase | None:
        if "Failed to load model" in line.text:
            return "weights"
        phase = _phase_of_frames(self.frames.get(line.process, ()))
        # The engine's own frames only show that its workers profiled.
        if phase == "profile" and self.phase is not None and self.phase.startswith("profile:"):
            return self.phase
        return phase

    def to_log(self, starts: int) -> StartupLog:
        if isinstance(model := self.engine_args.get("model"), str):
            self.facts.setdefault("model", model)
        args, failures = self.engine_args, tuple(self.failures.values())
        return StartupLog(**self.facts, engine_args=args, failures=failures, starts=starts)
