"""Lines that state one fact other than memory, and what each states."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mmcalib.derive.logs.line import Line
from mmcalib.derive.logs.quantities import COUNT, NUMBER, count


@dataclass(frozen=True, slots=True)
class LogFact:
    """`mark` is in the line; the pattern's only group, read by `read`, is the field's value.

    `places` are the files that log it, where another file's line looks the same.
    """

    field: str
    mark: str
    pattern: re.Pattern[str]
    read: Callable[[str], object] = str
    places: tuple[str, ...] = ()


def _fact(
    field: str,
    mark: str,
    pattern: str,
    read: Callable[[str], object] = str,
    places: tuple[str, ...] = (),
) -> LogFact:
    return LogFact(field, mark, re.compile(pattern, re.ASCII), read, places)


def _constant(value: str) -> Callable[[str], object]:
    return lambda _: value


def _backend(name: str) -> str:
    return name.removeprefix("AttentionBackendEnum.")


_PLATFORMS = ("cuda.py", "rocm.py", "xpu.py", "cpu.py", "tpu.py", "selector.py")
_NATIVE = _constant("PyTorch-native")

# The first line that states a field wins; the order here decides within one line.
FACTS = (
    _fact("vllm_version", "API server version", r"API server version (\S{1,80})"),
    _fact(
        "vllm_version", "LLM engine (v", r"Initializing an? (?:V\d )?LLM engine \(v([^)]{1,80})\)"
    ),
    # The banner, by 0.17, and what stands for it with VLLM_DISABLE_LOG_LOGO.
    _fact("vllm_version", "█  version ", r"█  version (\S{1,80})"),
    _fact("vllm_version", "vLLM server version ", r"server version ([^\s,]{1,80})"),
    _fact("model", "vLLM server version ", r", serving model (\S.{0,300})"),
    _fact("model", "█  model ", r"█  model {2,4}(\S.{0,300})"),
    _fact("model", "Starting to load model", r"Starting to load model (\S{1,300}?)\.\.\."),
    _fact("max_model_len", "Using max model len", rf"max model len ({COUNT})", count),
    _fact("fitted_max_model_len", "Auto-fit max_model_len: reduced", rf" to ({COUNT}) to", count),
    _fact(
        "max_num_batched_tokens",
        "Chunked prefill is enabled",
        rf"max_num_batched_tokens=({COUNT})",
        count,
    ),
    _fact(
        "gpu_memory_utilization",
        "esired GPU memory utilization",
        rf"utilization (?:is )?\(({NUMBER}),",
        float,
    ),
    _fact(
        "gpu_memory_utilization",
        "x gpu_memory_utilization (",
        rf"gpu_memory_utilization \(({NUMBER})\)",
        float,
    ),
    _fact(
        "gpu_memory_utilization",
        "The current --gpu-memory-utilization=",
        rf"--gpu-memory-utilization=({NUMBER})",
        float,
    ),
    _fact("kv_cache_tokens", "KV cache size:", rf"KV cache size: ({COUNT}) tokens", count),
    _fact("max_concurrency", "Maximum concurrency for", rf"request: ({NUMBER})x", float),
    _fact(
        "max_concurrency_tokens", "Maximum concurrency for", rf"concurrency for ({COUNT})", count
    ),
    _fact("leaves_out_graphs", "CUDA graph memory profiling is disabled", "(disabled)", bool),
    _fact("counts_graphs", "CUDA graph memory profiling is enabled", "(enabled)", bool),
    _fact("skips_mm_profiling", "Skipping memory profiling for", "(multimodal encoder)", bool),
    _fact("model_runner", "Initializing a V0 LLM engine", "(V0)"),
    _fact("model_runner", "Using V2 Model Runner", "(V2)"),
    _fact("model_runner", "using the V1 model runner instead", "(V1)"),
    # Before what follows: these are of the encoder, not of the language model.
    _fact(
        "encoder_attention_backend",
        "for vit attention",
        r"Using (?:default )?backend (\S{1,60}) for vit attention",
        _backend,
    ),
    _fact(
        "encoder_attention_backend",
        "for MMEncoderAttention",
        r"Using (\S{1,60}) for MMEncoderAttention",
        _backend,
    ),
    _fact(
        "encoder_attention_backend",
        "inside vision module, so we use",
        r"so we use (\S{1,40}) backend",
    ),
    _fact("attention_backend", "attention backend out of", r"Using (\S{1,60}) attention backend"),
    _fact(
        "attention_backend",
        " backend",
        r"^Using ([\w. -]{1,60}?) backend(?: on V1 engine)?\.?$",
        _backend,
        _PLATFORMS,
    ),
    _fact("attention_backend", "backend on V1 engine", r"Using ([\w ]{1,60}?) backend on V1"),
    _fact("sampler", "Using FlashInfer for top-p", "(FlashInfer)"),
    _fact("sampler", "implementation of top-p", "(native implementation)", _NATIVE),
    _fact("sampler", "FlashInfer top-p/top-k sampling", "(unavailable|disabled)", _NATIVE),
)

_ENCODER = re.compile(
    rf"with a budget of ({COUNT}) tokens(?:,\s+and profiled with ({COUNT}) (\w{{1,40}}) items)?",
    re.ASCII,
)


def facts_in(text: str, place: str | None) -> dict[str, object]:
    """The fields that a line states."""
    found: dict[str, object] = {}
    for fact in FACTS:
        if fact.mark not in text or fact.field in found:
            continue
        if fact.places and place not in fact.places:
            continue
        match = fact.pattern.search(text)
        if match:
            found[fact.field] = fact.read(match.group(1))
    return found


def encoder_in(line: Line) -> tuple[int, int | None, str | None] | None:
    """Tokens, items and modality of "Encoder cache will be initialized with a budget of ..."."""
    if "Encoder cache will be initialized" not in line.text:
        return None
    found = _ENCODER.search(line.message("items of the"))
    if not found:
        return None
    tokens, items, modality = found.groups()
    return (
        count(tokens),
        count(items) if items else None,
        modality.lower() if modality else None,
    )
