"""A log as a row of evidence; the public rows are made again from what they quote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmcalib.derive.logs import read_log
from mmcalib.result.log_row import LogRow
from mmcalib.workflows.plan import from_log
from mmcalib.workflows.plan.log_row import log_figures, row

LOGS = Path(__file__).parents[2] / "derive" / "logs"

# Figures of the public rows that no quoted line states, or not so.
NOT_QUOTED: dict[str, set[str]] = {
    # `enforce_eager`, nvidia-smi, words of the source beside the log.
    "q25vl7b-l4": {"gpu_used_after_start_mib"},
    "q3vl8b-pixels980": {"cudagraph_gib"},
    "q25vl3b-v0-100img": {"reserved_mm_tokens"},
    "nemotron-512f-before": {"profiled_items", "profiled_modality"},
    "q38-flashnext-pro6000-97": {"weights_gib"},
    "q38-longvideo-oomkill": {"weights_gib"},
    "q38-27b-gfx1151-mtp": {"requested_gib"},
    # Two workers: the row has the first, and the one that decides is read.
    "q38-27b-fp8-2x5090": {"kv_cache_gib", "consumed_gib"},
    # One line quoted of several that were read.
    "q36-27b-int4-2x3090-104a": {"max_concurrency"},
    "q25-05b-control-0271-serve": {"kv_cache_tokens"},
    # Tables and prose, no log.
    "gemma4-31b-qat-w4a16-4x3090": {"kv_cache_gib", "kv_cache_tokens", "max_concurrency"},
    "q38-27b-fp8-2x3090": {"kv_cache_tokens", "max_concurrency"},
    "hybrid64-5090-52872-8192": {
        *("activation_peak_gib", "kv_cache_gib", "cudagraph_gib", "requested_gib")
    },
    "hybrid64-5090-52872-2048": {
        *("activation_peak_gib", "kv_cache_gib", "cudagraph_gib", "requested_gib")
    },
}


@pytest.fixture
def public(shared: Path) -> list[dict[str, Any]]:
    text = (shared / "facts" / "memory_logs.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_public_rows_are_made_again_from_their_quotes(public: list[dict[str, Any]]) -> None:
    compared = 0
    for known in public:
        made = log_figures(read_log(known["quote"])).model_dump()
        stated = {name: value for name, value in known["figures"].items() if value is not None}
        differ = {name for name, value in stated.items() if made.get(name) != value}
        assert differ == NOT_QUOTED.get(known["id"], set()), known["id"]
        compared += len(stated) - len(differ)
    assert compared >= 150


def test_a_row_has_the_fields_of_the_public_ones(public: list[dict[str, Any]]) -> None:
    for known in public:
        assert known.keys() <= LogRow.model_fields.keys()


def test_a_row_has_every_figure_and_no_secret() -> None:
    found = from_log.read(LOGS / "0.11.0-tp4.log")
    made = row(found.log, dict(found.engine_args), "Qwen/Qwen3-VL-30B-A3B-Instruct", "RTX-3090")
    assert made.id == "qwen3-vl-30b-a3b-instruct-rtx-3090-0.11.0"
    assert (made.vllm_version, made.status, made.quality) == ("0.11.0", "started", "full")
    assert made.figures.kv_cache_gib == 2.31
    assert made.figures.encoder_budget_tokens == 153_600
    assert made.engine_args["tensor_parallel_size"] == 4
    assert made.engine_args["limit_mm_per_prompt"] is None
    assert "api_key" not in made.model_dump_json()
    again = log_figures(read_log(made.quote))
    assert again == made.figures


def test_a_failed_start_is_a_row_too_and_lines_name_its_release() -> None:
    found = from_log.read(LOGS / "0.28-rocm-skips-profiling.log")
    made = row(found.log, dict(found.engine_args), "Qwen/Qwen3.8-27B", None)
    assert made.vllm_version == "0.28.0 (line numbers)"
    assert made.derived is not None
    assert made.derived["closes"] is True
    assert made.derived["non_torch_gib"] == pytest.approx(0.56)
    assert made.derived["activation_without_graph_estimate_gib"] == pytest.approx(0.85)
    failed = from_log.read(LOGS / "0.23.0-negative.log")
    made = row(failed.log, dict(failed.engine_args), "Qwen/Qwen2.5-VL-7B-Instruct", None)
    assert made.status == "failed: nothing was left for the KV cache (kv cache)"
    assert (made.gpu, made.quality) == (None, "partial")
