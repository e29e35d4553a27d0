"""vLLM's encoder budget, as it is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmcalib.domain.memory import Budget
from mmcalib.releases.runner import budget_of


def read(most: dict[str, int]) -> Budget:
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=32_768),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192, max_num_seqs=128),
    )
    mm = SimpleNamespace(
        encoder_compute_budget=8192,
        encoder_cache_size=8192,
        mm_max_toks_per_item=most,
        mm_max_items_per_prompt=dict.fromkeys(most, 1),
        mm_max_items_per_batch=dict.fromkeys(most, 4),
        get_modality_with_max_tokens=lambda: max(most, key=lambda name: most[name]),
        processor=None,
    )
    return budget_of(config, mm, lambda config, processor: None)


def test_modalities_are_in_one_order() -> None:
    found = read({"video": 2000, "image": 1000})
    assert list(found.max_tokens_per_item) == ["image", "video"]
    assert (found.profiled_modality, found.profiled_items) == ("video", 4)


def test_items_of_a_kind_that_vllm_alone_has_are_named() -> None:
    with pytest.raises(ValueError, match="vision_chunk"):
        read({"vision_chunk": 1000})
