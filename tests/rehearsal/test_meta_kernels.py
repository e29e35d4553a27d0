"""What torch's meta kernels are asked for is what its fake mode would say."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcalib.models.cut import cut_checkpoint
from tests.engine.conftest import folder_of
from tests.programs import answer_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("meta_kernels_beside_fakes.py")


@pytest.mark.parametrize(
    "model_id",
    [
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "Qwen/Qwen3.5-4B",
        "google/gemma-4-E4B-it",
        "Qwen/Qwen2.5-Omni-7B",
    ],
)
def test_the_same_for_each_operation_of_a_startup(
    model_id: str, with_vllm: None, engine_cache: Path, tmp_path: Path
) -> None:
    folder = folder_of(model_id, engine_cache)
    cut = cut_checkpoint(folder, tmp_path / "cut", text_layers=4, encoder_layers=4).path
    found = answer_of(PROGRAM, cut)
    assert found["differing"] == {}
    assert found["peak"] > 0
    assert len(found["compared"]) > 15
    assert sum(found["compared"].values()) > 300
