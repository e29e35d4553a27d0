"""Logs of vLLM from 0.8 to 0.32. Each fixture names the public log that its lines are from.

Those that say "composed" have lines of more than one log, or of the format strings of a version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.logs import (
    RETIRED,
    AllocationFailed,
    Cause,
    GpuOccupied,
    ItemAboveBatch,
    ItemRefused,
    KvCacheTooSmall,
    LoggedBudget,
    NoKvCache,
    OutOfMemory,
    Phase,
    ProcessKilled,
    SamplerOutOfMemory,
    StartupLog,
    read_log,
)

LOGS = Path(__file__).parent / "logs"
GIB, MIB = 2**30, 2**20

# Fixture -> fields of the log; bytes in GiB, as the lines have them.
STATED: dict[str, dict[str, Any]] = {
    "0.8.0-tp4-gb": {"weights_bytes": 3.9972, "model_runner": "V1"},
    "0.8.5-v0-phi4": {
        "weights_bytes": 8.6253,
        "activation_peak_bytes": 1.16,
        "non_torch_bytes": 0.09,
        "kv_cache_bytes": 45.21,
        "cudagraph_bytes": 1.12,
        "gpu_total_bytes": 79.15,
        "requested_bytes": 55.09,
        "gpu_memory_utilization": 0.70,
        "max_concurrency": 462.97,
        "max_concurrency_tokens": 512,
        "attention_backend": "Flash Attention",
        "serves": True,
    },
    "0.9.0.1-l4": {
        "vllm_version": "0.9.0.1",
        "model": "/mnt/models",
        "weights_bytes": 15.6271,
        "kv_cache_bytes": 1.81,
        "kv_cache_tokens": 33_824,
        "max_concurrency": 16.52,
        "max_concurrency_tokens": 2048,
        "cudagraph_bytes": 0.51,
        "encoder": LoggedBudget(16_384, 1, "image"),
        "max_model_len": 2048,
        "max_num_batched_tokens": 2048,
        "model_runner": "V1",
        "attention_backend": "Flash Attention",
        "encoder_attention_backend": "xformers",
        "sampler": "FlashInfer",
        "serves": True,
        "starts": 1,
    },
    # What the second start says; the first had failed.
    "0.9-v0-negative-twice": {
        "vllm_version": "0.9.1",
        "model_runner": "V0",
        "weights_bytes": 6.4689,
        "kv_cache_bytes": None,
        "max_model_len": 4096,
        "troubles": (),
        "starts": 2,
    },
    "0.10.2-itemised": {
        "vllm_version": "0.10.2",
        "model": "llava-hf/llava-v1.6-mistral-7b-hf",
        "weights_bytes": 14.0786,
        "activation_peak_bytes": 1.97,
        "non_torch_bytes": 0.07,
        "kv_cache_bytes": 55.15,
        "kv_cache_tokens": 451_744,
        "max_concurrency": 110.29,
        "cudagraph_bytes": 0.67,
        "gpu_free_bytes": 78.66,
        "gpu_total_bytes": 79.19,
        "requested_bytes": 71.27,
        "gpu_memory_utilization": 0.9,
        "encoder": LoggedBudget(16_384, 5, "image"),
        "max_num_batched_tokens": 16_384,
        "sampler": "PyTorch-native",
        "model_runner": "V1",
    },
    "0.11.0-tp4": {
        "vllm_version": "0.11.0",
        "weights_bytes": 14.7708,
        "kv_cache_bytes": 2.31,
        "kv_cache_tokens": 100_752,
        "max_concurrency": 1.54,
        "cudagraph_bytes": 1.92,
        "encoder": LoggedBudget(153_600, 1, "video"),
        "max_model_len": 65_536,
    },
    "0.23.0-negative": {
        "vllm_version": "0.23.0",
        "model": "/models/Qwen2.5-VL-7B-Instruct",
        "weights_bytes": 15.67,
        "kv_cache_bytes": -14.28,
        "cudagraph_estimate_bytes": 0.53,
        "encoder": LoggedBudget(114_688, 1, "video"),
        "gpu_memory_utilization": 0.22,
        "max_model_len": 128_000,
        "attention_backend": "FLASH_ATTN",
        "encoder_attention_backend": "FLASH_ATTN",
        "sampler": "FlashInfer",
        "phase": "kv cache",
        "serves": False,
    },
    "0.27.1-consumed": {
        "vllm_version": "0.27.1",
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "weights_bytes": 0.93,
        "consumed_bytes": 1.49,
        "activation_peak_bytes": 0.25,
        "kv_cache_bytes": 18.65,
        "requested_bytes": 20.39,
        "phase": None,
    },
    "0.28-rocm-skips-profiling": {
        "skips_mm_profiling": True,
        "weights_bytes": 51.1,
        "consumed_bytes": 51.66,
        "kv_cache_bytes": 19.54,
        "kv_cache_tokens": 313_650,
        "max_concurrency": 1.20,
        "max_concurrency_tokens": 262_144,
        "cudagraph_bytes": 0.71,
        "cudagraph_estimate_bytes": 1.55,
        "gpu_total_bytes": 80.0,
        "encoder": None,
    },
    "0.31.0-one-line-capacity": {
        "weights_bytes": 15.0,
        "kv_cache_bytes": 56.21,
        "kv_cache_tokens": 460_496,
        "max_concurrency": 3.51,
        "max_concurrency_tokens": 131_072,
        "consumed_bytes": 15.26,
        "activation_peak_bytes": 1.44,
    },
    "0.32.0-coloured": {
        "vllm_version": "0.32.0",
        "model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "weights_bytes": 7.16,
        "kv_cache_bytes": 12.34,
        "kv_cache_tokens": 359_424,
        "max_concurrency_tokens": 128_000,
        "encoder": LoggedBudget(7680, 6, "image"),
        "max_num_batched_tokens": 7680,
        "model_runner": "V2",
        "attention_backend": "FLASHINFER",
        "sampler": "PyTorch-native",
    },
}


def log_of(name: str) -> StartupLog:
    return read_log((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("name", STATED)
def test_a_log_of_each_version_says_what_its_lines_state(name: str) -> None:
    log = log_of(name)
    said = {key: getattr(log, key) for key in STATED[name]}
    wanted = {
        key: round(value * GIB) if key.endswith("_bytes") and value is not None else value
        for key, value in STATED[name].items()
    }
    assert said == wanted


def test_every_fixture_is_read_in_some_test() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == {*STATED, *FAILED}


OOM_GIB = OutOfMemory(
    tried_bytes=594 * MIB,
    gpu=0,
    total_bytes=round(79.33 * GIB),
    free_bytes=round(508.44 * MIB),
    allocated_bytes=round(74.24 * GIB),
    graph_pools_bytes=round(57.88 * MIB),
    unallocated_bytes=round(185.89 * MIB),
)
FAILED: dict[str, tuple[Phase, list[tuple[Cause, int]]]] = {
    "0.8.4-v0-encoder-oom": (
        "profile: encoder",
        [
            (
                OutOfMemory(
                    tried_bytes=800 * MIB,
                    gpu=0,
                    total_bytes=round(15.56 * GIB),
                    free_bytes=round(442.62 * MIB),
                    process_bytes=round(15.12 * GIB),
                    allocated_bytes=round(14.88 * GIB),
                    unallocated_bytes=round(38.19 * MIB),
                ),
                2,
            )
        ],
    ),
    "0.9-graphs-oom": ("cuda graphs", [(OutOfMemory(), 1)]),
    "0.11.0-sampler-oom": ("profile: sampler", [(OOM_GIB, 1), (SamplerOutOfMemory(1024), 2)]),
    "0.17.1-encoder-oom": ("profile: encoder", [(OutOfMemory(tried_bytes=192 * GIB), 1)]),
    "0.23.0-negative": ("kv cache", [(NoKvCache(), 2)]),
    "weights-oom": (
        "weights",
        [
            (
                OutOfMemory(
                    tried_bytes=84 * MIB,
                    gpu=0,
                    total_bytes=round(31.35 * GIB),
                    free_bytes=round(93.06 * MIB),
                    process_bytes=round(30.33 * GIB),
                    allocated_bytes=round(29.39 * GIB),
                    unallocated_bytes=round(309.08 * MIB),
                ),
                1,
            )
        ],
    ),
    "serving-oom": (
        "serving",
        [
            (
                OutOfMemory(
                    tried_bytes=50 * MIB,
                    gpu=0,
                    total_bytes=round(23.56 * GIB),
                    free_bytes=round(21.75 * MIB),
                    process_bytes=round(23.50 * GIB),
                    allocated_bytes=round(22.88 * GIB),
                    graph_pools_bytes=24 * MIB,
                    unallocated_bytes=round(275.38 * MIB),
                ),
                1,
            )
        ],
    ),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_failed_start_says_where_and_of_what(name: str) -> None:
    phase, causes = FAILED[name]
    log = log_of(name)
    assert [(trouble.cause, trouble.times) for trouble in log.troubles] == causes
    assert log.phase == phase
    assert log.failure == log.troubles[0]


# Messages as they stand in issues (vllm#15457, xinference#4926, PR 36814, ms-swift's FAQ, ...).
MESSAGES: list[tuple[str, Cause, Phase | None]] = [
    (
        "ValueError: To serve at least one request with the models's max seq len (32768), (2.00 GB "
        "KV cache is needed, which is larger than the available KV cache memory (0.78 GB). Try "
        "increasing `gpu_memory_utilization` or decreasing `max_model_len`",
        KvCacheTooSmall(32_768, 2 * GIB, round(0.78 * GIB)),
        "kv cache",
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (262144), (36.0 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (6.94 GiB). "
        "Based on the available memory, the estimated maximum model length is 50512. Try",
        KvCacheTooSmall(262_144, 36 * GIB, round(6.94 * GIB), 50_512),
        "kv cache",
    ),
    (
        "ValueError: To serve at least one request with the model's max seq len (40960), (5.62 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (2.40 GiB). Based "
        "on the available memory, the estimated maximum model length is 17472.",
        KvCacheTooSmall(40_960, round(5.62 * GIB), round(2.4 * GIB), 17_472),
        "kv cache",
    ),
    (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens "
        "that can be stored in KV cache (4464). Try increasing `gpu_memory_utilization`",
        KvCacheTooSmall(32_768, fits_tokens=4464),
        "kv cache",
    ),
    (
        "ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 3.6 GiB). Decrease GPU memory utilization or reduce",
        GpuOccupied(round(3.22 * GIB), 4 * GIB, 0.9, round(3.6 * GIB)),
        "start",
    ),
    (
        "ValueError: Free memory on device cuda:0 (3.25/23.43 GiB) on startup is less than desired "
        "GPU memory utilization (0.96, 22.49 GiB). Decrease GPU memory utilization",
        GpuOccupied(round(3.25 * GIB), round(23.43 * GIB), 0.96, round(22.49 * GIB)),
        "start",
    ),
    (
        "The decoder prompt contains a(n) video item with length 74717, which exceeds the "
        "pre-allocated encoder cache size 45536. Please reduce the input size or increase",
        ItemRefused("video", 74_717, 45_536),
        "serving",
    ),
    (
        "The decoder prompt contains a(n) image item with 4230 embedding tokens, which exceeds the "
        "pre-allocated encoder cache size 4225. Please reduce the input size or increase",
        ItemRefused("image", 4230, 4225),
        "serving",
    ),
    (
        "(APIServer pid=1657) ValueError: Chunked MM input disabled but max_tokens_per_mm_item "
        "(2496) is larger than max_num_batched_tokens (1536). Please increase",
        ItemAboveBatch(2496, 1536),
        "start",
    ),
    (
        "EngineCore process was killed by signal -9 (SIGKILL, typically the OOM killer)",
        ProcessKilled("EngineCore", 9),
        None,
    ),
    (
        "[rank0] memory allocation failed with OOM on device 0 while trying to allocate 2097152 "
        "bytes (free: 2031616, total: 23661248512)",
        AllocationFailed(2_097_152, 0, 23_661_248_512, 2_031_616),
        None,
    ),
    (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 148.00 MiB. GPU 0 has "
        "a total capacty of 23.69 GiB of which 76.81 MiB is free. Process 457819 has 23.60 GiB "
        "memory in use.",
        OutOfMemory(148 * MIB, 0, round(23.69 * GIB), round(76.81 * MIB)),
        None,
    ),
    ("RuntimeError: CUDA driver error: out of memory", OutOfMemory(), None),
]


@pytest.mark.parametrize(("message", "cause", "phase"), MESSAGES)
def test_a_message_alone_is_enough(message: str, cause: Cause, phase: Phase | None) -> None:
    log = read_log([message])
    assert [(trouble.cause, trouble.phase) for trouble in log.troubles] == [(cause, phase)]


@pytest.mark.parametrize(("message", "cause", "phase"), MESSAGES)
def test_a_message_that_was_wrapped_is_put_together(
    message: str, cause: Cause, phase: Phase | None
) -> None:
    words = message.split(" ")
    mark = 14
    wrapped = [" ".join(words[:mark]), *(" ".join(words[i : i + 9]) for i in range(mark, 99, 9))]
    log = read_log(["Traceback:", *filter(None, wrapped)])
    assert [trouble.cause for trouble in log.troubles] == [cause]


def test_two_messages_in_a_row_keep_their_own_figures() -> None:
    log = read_log(
        [
            "CUDA out of memory. Tried to allocate 1.00 GiB.",
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 8.00 GiB"
            " of which 3.00 MiB is free.",
        ]
    )
    first, second = (trouble.cause for trouble in log.troubles)
    assert first == OutOfMemory(tried_bytes=GIB)
    assert second == OutOfMemory(2 * GIB, 1, 8 * GIB, 3 * MIB)


def test_the_smallest_kv_cache_of_the_workers_counts_and_all_are_kept() -> None:
    """Copied from two workers without their prefixes, as issues have it."""
    log = read_log(
        [
            "Available KV cache memory: 0.24 GiB",
            "Available KV cache memory: -1.42 GiB",
            "GPU KV cache size: 57,344 tokens",
            "GPU KV cache size: 60,000 tokens",
        ]
    )
    assert log.kv_cache_bytes == round(-1.42 * GIB)
    assert log.all_bytes("kv_cache") == (round(0.24 * GIB), round(-1.42 * GIB))
    assert log.kv_cache_tokens == 57_344


def test_readings_know_their_worker_and_their_line() -> None:
    log = log_of("0.11.0-tp4")
    found = [reading for reading in log.readings if reading.quantity == "kv_cache"]
    assert [reading.process for reading in found] == [
        f"Worker_TP{rank} pid={41699 + rank}" for rank in (3, 2, 0, 1)
    ]
    assert [reading.line for reading in found] == [13, 14, 15, 16]


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "(EngineCore_0 pid=72) INFO 08-25 09:42:20 [gpu_worker.py:276] ",
        "(VllmWorker rank=1 pid=12) INFO 08-25 09:42:20 [gpu_worker.py:276] ",
        "\x1b[1;36m(VllmWorker rank=1 pid=12)\x1b[0;0m INFO 08-25 09:42:20 [gpu_worker.py:276] ",
        "ESC[0;36m(EngineCore_DP0 pid=52470)ESC[0;0m INFO 08-25 09:42:20 [gpu_worker.py:276] ",
        "INFO 02-09 15:20:07 gpu_worker.py:918] ",
        "(EngineCore_DP0 pid=7) (Worker_TP0 pid=8) INFO 11-05 09:18:38 [gpu_worker.py:703] ",
        "qwen3-vl-32b  | (EngineCore_DP0 pid=4) INFO 11-10 12:30:57 [gpu_worker.py:710] ",
        "2026-04-19 12:05:27.169 | (EngineCore pid=2) INFO 04-19 10:05:27 [gpu_worker.py:1] ",
        "(RayWorkerWrapper pid=1463574, ip=10.0.0.60) INFO 03-27 10:29:01 [worker.py:267] ",
        "70:(EngineCore pid=492078) INFO 08-23 09:39:41 [v1/worker/gpu_worker.py:760] ",
    ],
)
def test_prefixes_do_not_hide_a_line(prefix: str) -> None:
    log = read_log([prefix + "Available KV cache memory: -2.16 GiB"])
    assert log.kv_cache_bytes == round(-2.16 * GIB)
    (reading,) = log.readings
    assert (reading.process is None) == ("pid" not in prefix)


def test_what_was_set_and_what_came_of_it_are_told_apart_and_secrets_left_out() -> None:
    log = log_of("0.23.0-negative")
    assert log.engine_args["trust_remote_code"] is True
    assert log.engine_args["served_model_name"] == ["qwen2.5-vl"]
    assert log.engine_config["dtype"] == "bfloat16"
    assert log.engine_config["max_model_len"] == 128_000
    assert log.engine_config["quantization"] is None
    assert log.engine_config["enable_chunked_prefill"] is True
    assert "api_key" not in log_of("0.11.0-tp4").engine_args
    nested = log_of("0.32.0-coloured").engine_args
    assert nested["limit_mm_per_prompt"] == {
        "image": {"count": 1, "width": 512},
        "video": 0,
    }


def test_arguments_that_are_cut_short_are_read_as_far_as_they_go() -> None:
    log = read_log(["non-default args: {... 'max_model_len': 65536, ... 'dtype': 'auto', 'x': {'y"])
    assert log.engine_args == {"max_model_len": 65_536, "dtype": "auto", "x": "{'y"}


def test_a_namespace_of_0_8_is_read_as_what_the_engine_took() -> None:
    log = read_log(["INFO args: Namespace(model='Qwen/Q', max_model_len=None, swap_space=4)"])
    assert log.engine_config == {"model": "Qwen/Q", "max_model_len": None, "swap_space": 4}
    assert (log.model, log.engine_args, log.retired) == ("Qwen/Q", {}, ())


def test_what_was_requested_follows_from_a_total_that_an_error_states() -> None:
    failed = [
        "non-default args: {'gpu_memory_utilization': 0.5}",
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
    ]
    assert read_log(failed).requested_bytes == 4 * GIB
    assert read_log(failed[1:]).requested_bytes is None


def test_what_is_consumed_beyond_the_weights_is_not_torch_s() -> None:
    log = log_of("0.27.1-consumed")
    assert log.non_torch_bytes == round(1.49 * GIB) - round(0.93 * GIB)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("vllm serve Qwen/Q --swap-space 16", "--swap-space"),
        ("vllm serve Qwen/Q --swap_space=16", "--swap-space"),
        ("export VLLM_MM_INPUT_CACHE_GIB=8", "VLLM_MM_INPUT_CACHE_GIB"),
        ("non-default args: {'disable_mm_preprocessor_cache': True}", RETIRED[1].name),
        (
            "WARNING 09-01 10:00:00 [arg_utils.py:940] `--disable-mm-preprocessor-cache` is "
            "deprecated and will be removed in v0.13. Please use `--mm-processor-cache-gb 0`.",
            "--disable-mm-preprocessor-cache",
        ),
    ],
)
def test_a_retired_knob_is_known_by_today_s_name(line: str, name: str) -> None:
    (knob,) = read_log([line]).retired
    assert knob.name == name
    assert knob.today is None or knob.today.startswith("--")


@pytest.mark.parametrize("line", ["--swap-spaces 1", "--no-task", "my--swap-space", "--tasks"])
def test_what_only_looks_like_a_retired_knob_is_left_alone(line: str) -> None:
    assert read_log([line]).retired == ()


def test_a_refused_request_and_a_retried_allocation_are_no_failure() -> None:
    messages = [message for message, cause, _ in MESSAGES if isinstance(cause, ItemRefused)]
    messages += [message for message, cause, _ in MESSAGES if isinstance(cause, AllocationFailed)]
    log = read_log(messages)
    assert len(log.troubles) == 3
    assert (log.failure, log.phase) == (None, None)


def test_without_frames_the_last_line_that_tells_names_the_phase() -> None:
    lines = ["Encoder cache will be initialized with a budget of 45536 tokens"]
    lines += ["CUDA out of memory. Tried to allocate 2.00 GiB."]
    log = read_log(lines)
    assert log.phase == "profile: encoder"
    assert log.encoder == LoggedBudget(45_536, None, None)


def test_the_engine_s_last_words_are_no_new_start() -> None:
    lines = ["Model loading took 1.0 GiB memory and 2.0 seconds"]
    lines += [
        "Dumping input data for V1 LLM engine (v0.11.0) with config: model='q', max_seq_len=1"
    ]
    log = read_log(lines)
    assert (log.starts, log.weights_bytes, log.engine_config) == (1, GIB, {})


def test_a_start_after_one_that_failed_early_is_its_own() -> None:
    log = read_log(
        [
            "non-default args: {'gpu_memory_utilization': 0.96}",
            "ValueError: Free memory on device cuda:0 (3.25/23.43 GiB) on startup is less than "
            "desired GPU memory utilization (0.96, 22.49 GiB). Decrease GPU memory utilization",
            "non-default args: {'gpu_memory_utilization': 0.5}",
            "Starting to load model q...",
            "Model loading took 1.0 GiB memory and 2.0 seconds",
            "Available KV cache memory: 9.0 GiB",
        ]
    )
    assert (log.starts, log.gpu_memory_utilization, log.troubles) == (2, 0.5, ())
    again = ["Available KV cache memory: 9.0 GiB", "Starting to load model other..."]
    assert (read_log(again).model, read_log(again).kv_cache_bytes) == ("other", None)


# Pieces of real lines, so that chance reaches the depths of each reader.
PIECES = [
    *(message for message, _, _ in MESSAGES),
    *(
        "non-default args: {",
        "args: Namespace(",
        "(v0.1) with config: ",
        "Initializing a V1 LLM engine ",
    ),
    *(
        "'max_model_len': ",
        "model=",
        "[[[",
        "{{{",
        "<<",
        "'",
        '"',
        "\\",
        ", ",
        "=",
        ":",
        "999999999",
    ),
    *("Model loading took ", "9" * 400, " GiB", "1.5", "-", "Available KV cache memory: "),
    *(
        "(Worker pid=1) ",
        "INFO 01-01 00:00:00 [a.py:1] ",
        "\x1b[0m",
        "\x00",
        "█  version ",
        "█  model ",
    ),
    *(
        'File "a", line 1, in profile_run',
        "Traceback (most recent call last):",
        "Tried to allocate ",
    ),
]


@given(st.lists(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=9)).map("".join)))
def test_no_text_is_an_error(lines: list[str]) -> None:
    log = read_log(lines)
    assert log == read_log(lines)
    assert (log.phase is None) == (log.failure is None or log.failure.phase is None)
    assert log.requested_bytes is None or log.requested_bytes >= 0


def test_long_and_deep_lines_are_read_in_time() -> None:
    lines = ["non-default args: {'a': " + "[" * 50_000, "Tried to allocate " + "1" * 100_000]
    lines += ["Initializing a V1 LLM engine (v1) with config: " + "a=-" * 40_000]
    lines += ["(" * 5000 + "INFO " * 5000, "Using " + "a " * 50_000 + "backend"]
    log = read_log(lines)
    assert log.vllm_version == "1"
