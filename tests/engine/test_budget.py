"""vLLM's own encoder budget, and the trap that it sets."""

from __future__ import annotations

import pytest

from mmcalib.derive.limits import compute_reserve
from tests.engine.conftest import Lab

pytestmark = pytest.mark.engine


def test_the_default_reserves_for_the_largest_video_the_model_takes(qwen: Lab) -> None:
    budget = qwen.budget(build_dummy=False)
    assert budget.max_tokens_per_item == {"image": 16_384, "video": 114_688}
    assert budget.encoder_compute_budget == budget.encoder_cache_size == 114_688
    assert (budget.profiled_modality, budget.profiled_items) == ("video", 1)


def test_no_video_shrinks_the_budget_to_the_largest_image(qwen: Lab) -> None:
    budget = qwen.budget(build_dummy=False, limit_mm_per_prompt={"image": 1, "video": 0})
    assert budget.max_tokens_per_item == {"image": 16_384}
    assert budget.encoder_cache_size == 16_384


def test_the_size_hint_trap_is_caught(qwen: Lab) -> None:
    """A 512×512 hint shrinks what is profiled and not what a step may encode (DESIGN 1.3)."""
    budget = qwen.budget(
        limit_mm_per_prompt={"image": {"count": 1, "width": 512, "height": 512}, "video": 0},
        max_num_batched_tokens=8192,
    )
    assert budget.encoder_compute_budget == 16_384
    assert budget.dummies["image"].embeds == 324
    found = compute_reserve(budget, {"image": 1, "video": 0})
    assert (found.profiled_tokens, found.worst_step_tokens) == (324, 16_384)
    assert not found.passes


def test_a_cap_shrinks_budget_and_profile_together(qwen: Lab) -> None:
    budget = qwen.budget(
        limit_mm_per_prompt={"image": 1, "video": 0},
        max_num_batched_tokens=7680,
        mm_processor_kwargs={"max_pixels": 1_003_520},
    )
    assert budget.max_tokens_per_item == {"image": 1280}
    assert budget.dummies["image"].embeds == 1280
    found = compute_reserve(budget, {"image": 1, "video": 0})
    assert (found.profiled_tokens, found.worst_step_tokens) == (7680, 7680)
    assert found.passes
