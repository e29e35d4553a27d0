"""The engine child's readings of a CUDA worker, on vLLM's own and an imaginary GPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import left_of_request
from tests.engine.conftest import QWEN, folder_of
from tests.programs import answer_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# What a profile leaves in torch: workspaces of matrix products.
LEFT_BYTES = 64 << 20


@pytest.fixture(scope="module", params=[pytest.param("0", marks=pytest.mark.long), "1"])
def found(with_vllm: None, request: pytest.FixtureRequest, engine_cache: Path) -> dict[str, Any]:
    """The figures under either of vLLM's model runners."""
    folder = folder_of(QWEN, engine_cache)
    program = Path(__file__).with_name("worker_on_imaginary_gpu.py")
    answer: dict[str, Any] = answer_of(program, folder, VLLM_USE_V2_MODEL_RUNNER=request.param)
    assert answer["memory"]["runner"] == ("V2" if request.param == "1" else "V1")
    return answer


def test_the_worker_s_figures_add_up_to_what_it_left_for_the_kv_cache(found) -> None:
    memory = SimpleNamespace(**found["memory"])
    left = left_of_request(memory, "weights", "beside", "activation_peak", "cudagraph")
    assert left == memory.kv_cache_bytes == found["available_bytes"]


def test_a_second_profile_peaks_as_the_first_but_for_what_that_left(found: dict[str, Any]) -> None:
    phases = {"encoder", "language model", "sampler"}
    assert found["again"].keys() == found["phases"].keys() == phases
    for name in ("encoder", "language model"):
        assert 0 <= found["phases"][name] - found["again"][name] <= LEFT_BYTES


def test_either_runner_tells_its_encoder_budget(found: dict[str, Any]) -> None:
    assert found["budget"] == {"tokens": 8192, "modality": "image", "items": 6, "max_tokens": 1280}
