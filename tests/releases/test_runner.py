"""Differences between vLLM's model runners, held against the installed vLLM."""

import ast
import importlib.util
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmcalib.domain.memory import Budget
from mmcalib.releases.runner import (
    add_phase_peaks,
    estimates_graphs,
    read_worker_memory,
    record_graph_bytes,
    to_budget,
)
from tests.builders import left_of_request

METHOD = "profile_cudagraph_memory"


@pytest.fixture(scope="module")
def estimate() -> ast.FunctionDef:
    """The second runner's estimate of CUDA graphs, read: to import it would need a GPU."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("needs vLLM: make setup")
    path = Path(found.origin).parent / "v1/worker/gpu/model_runner.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    methods = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    return next(one for one in methods if one.name == METHOD)


@pytest.mark.engine
def test_the_second_runner_subtracts_graphs_where_it_estimates_them(estimate) -> None:
    estimates = ast.unparse(estimate.body[-1]) != "return 0"
    assert estimates_graphs(SimpleNamespace(use_v2_model_runner=True)) == estimates
    assert estimates_graphs(SimpleNamespace(use_v2_model_runner=False))


def read(most: dict[str, int]) -> Budget:
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=32_768),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192, max_num_seqs=128),
    )
    one, four = dict.fromkeys(most, 1), dict.fromkeys(most, 4)
    # As vLLM names them since 0.20, and before.
    mm = SimpleNamespace(
        encoder_compute_budget=8192,
        encoder_cache_size=8192,
        **dict.fromkeys(("mm_max_toks_per_item", "max_tokens_by_modality"), most),
        **dict.fromkeys(("mm_max_items_per_prompt", "max_items_per_prompt_by_modality"), one),
        **dict.fromkeys(("mm_max_items_per_batch", "max_items_per_batch_by_modality"), four),
        get_modality_with_max_tokens=lambda: max(most, key=lambda name: most[name]),
        processor=None,
    )
    return to_budget(config, mm, lambda config, processor: None)


def test_modalities_are_in_one_order() -> None:
    found = read({"video": 2000, "image": 1000})
    assert list(found.max_tokens_per_item) == ["image", "video"]
    assert (found.profiled_modality, found.profiled_items) == ("video", 4)


def test_items_of_a_kind_that_vllm_alone_has_are_named() -> None:
    with pytest.raises(ValueError, match="vision_chunk"):
        read({"vision_chunk": 1000})


# What vLLM's CUDA worker keeps of its start, by the attributes that two releases give it.
MIB = 1 << 20


def worker(**attributes: Any) -> SimpleNamespace:
    """The attributes that every release tried has; `attributes` are one release's own."""
    cache = SimpleNamespace(num_gpu_blocks=1000, block_size=16, kv_cache_memory_bytes=None)
    return SimpleNamespace(
        model_runner=SimpleNamespace(model_memory_usage=7000 * MIB),
        vllm_config=SimpleNamespace(cache_config=cache),
        init_snapshot=SimpleNamespace(total_memory=24_000 * MIB, free_memory=23_500 * MIB),
        requested_memory=22_000 * MIB,
        cudagraph_memory_estimate=100 * MIB,
        **attributes,
    )


# gpu_worker.py of 0.26: peak and what is outside torch, each by itself.
OF_0_26 = {
    "peak_activation_memory": 2000 * MIB,
    "non_torch_memory": 150 * MIB,
    "available_kv_cache_memory_bytes": (22_000 - 7000 - 2000 - 150 - 100) * MIB,
    "use_v2_model_runner": True,
}
# Of 0.32: all that was consumed, weights included, and the graphs within the peak.
OF_0_32 = {
    "peak_activation_memory": (2000 + 100) * MIB,
    "total_consumed": (7000 + 150) * MIB,
    "available_kv_cache_memory_bytes": (22_000 - 7150 - 2000 - 100) * MIB,
    "use_v2_model_runner": False,
}


@pytest.mark.parametrize(
    ("attributes", "outside", "runner"), [(OF_0_26, 150 * MIB, "V2"), (OF_0_32, None, "V1")]
)
def test_the_parts_add_up_to_the_kv_cache_in_either_release(attributes, outside, runner) -> None:
    found = read_worker_memory(worker(**attributes), subtracts_graphs=True)
    parts = "weights", "beside", "activation_peak", "cudagraph"
    assert found.kv_cache_bytes == left_of_request(found, *parts)
    assert (found.activation_peak_bytes, found.non_torch_bytes) == (2000 * MIB, outside)
    assert (found.runner, found.kv_cache_tokens) == (runner, 16_000)
    assert found.free_before_bytes == 23_500 * MIB


def test_graphs_that_were_not_subtracted_cost_nothing() -> None:
    assert read_worker_memory(worker(**OF_0_26), subtracts_graphs=False).cudagraph_bytes == 0


def test_a_release_that_keeps_nothing_gives_none_and_no_error() -> None:
    bare = worker()
    del bare.init_snapshot, bare.requested_memory, bare.cudagraph_memory_estimate
    found = read_worker_memory(bare, subtracts_graphs=True)
    assert (found.total_bytes, found.requested_bytes, found.activation_peak_bytes) == (None,) * 3
    assert (found.cudagraph_bytes, found.kv_cache_bytes) == (None, None)
    assert found.weights_bytes == 7000 * MIB


def test_tokens_are_vllm_s_own_count_where_it_keeps_one() -> None:
    counting = worker(**OF_0_32)
    counting.vllm_config.cache_config.kv_cache_size_tokens = 15_990
    assert read_worker_memory(counting, subtracts_graphs=True).kv_cache_tokens == 15_990


@pytest.mark.parametrize(
    ("second", "encoder"), [(1968, 2000), (2000, 2000), (2100, 2100), (1500, 1500)]
)
def test_a_second_profile_is_raised_by_what_the_first_left_in_torch(second, encoder: int) -> None:
    found = read_worker_memory(worker(**OF_0_26), subtracts_graphs=True)
    peaks = {"encoder": second * MIB, "sampler": 100 * MIB}
    raised = (encoder - second) * MIB
    phases = add_phase_peaks(found, peaks).phases
    assert phases == {"encoder": encoder * MIB, "sampler": 100 * MIB + raised}
    assert add_phase_peaks(found, {}).phases == {}


def test_what_graphs_took_is_heard_from_vllm_s_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="vllm")
    with record_graph_bytes() as graphs:
        logging.getLogger("vllm.v1.worker.gpu_model_runner").info("Capturing")
        assert graphs.nbytes is None
        logging.getLogger("vllm.v1.worker.gpu.model_runner").info(
            "Graph capturing finished in %.0f secs, took %.2f GiB", 3.2, 0.5
        )
    assert graphs.nbytes == 1 << 29
