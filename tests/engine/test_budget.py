"""vLLM's own encoder budget, the trap that it sets, and the bound of a video's size."""

from collections.abc import Callable
from typing import Any

import pytest

from mmcalib.domain.shapes import VideoShape
from mmcalib.engine.messages import Blank
from mmcalib.limits.values import compute_reserve
from tests.builders import some
from tests.engine.conftest import QWEN, Lab

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
    """A 512×512 hint shrinks the profiled item and not what a step may encode."""
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


QWEN3, LLAVA = "Qwen/Qwen3-VL-2B-Instruct", "llava-hf/llava-onevision-qwen2-7b-ov-hf"


def capped(longest_edge: int) -> dict[str, Any]:
    """In the spelling that every release takes; it caps images, too."""
    size = {"shortest_edge": 4096, "longest_edge": longest_edge}
    return {"mm_processor_kwargs": {"size": size}}


def test_a_cap_of_whole_clips_bounds_the_worst_step(lab: Callable[[str], Lab]) -> None:
    """No step exceeds what the cap allows plus rounding; two sequences filled all 16,384 tokens."""
    budget = lab(QWEN3).budget(max_num_seqs=2, max_num_batched_tokens=8192, **capped(4_014_080))
    assert budget.max_tokens_per_item["video"] == 1960
    found = compute_reserve(budget, {"image": 0, "video": 1})
    assert (found.worst_step_tokens, found.clip_suffix) == (2 * 1960, "")


def test_many_frames_may_cost_more_than_the_cap(lab: Callable[[str], Lab]) -> None:
    """Each step in time is one cell at least: 768 frames are 384, whatever the cap."""
    budget = lab(QWEN3).budget(max_num_seqs=2, max_num_batched_tokens=8192, **capped(401_408))
    assert budget.max_tokens_per_item["video"] == 196
    found = compute_reserve(budget, {"image": 0, "video": 1})
    assert found.worst_step_tokens == 2 * 384
    assert found.clip_suffix == f" (videos of up to {budget.largest_clip})"


def test_frames_that_the_loader_never_keeps_cost_nothing(lab: Callable[[str], Lab]) -> None:
    few = {"media_io_kwargs": {"video": {"max_frames": 16}}}
    clip = some(lab(QWEN3).budget(build_dummy=False, **capped(4_014_080), **few).largest_clip)
    # 4,014,080 pixels are 1,960 cells of two frames; rounding takes some.
    assert clip.num_frames <= 16
    assert 1_900 <= clip.embeds <= 1_960


@pytest.mark.parametrize(
    ("model", "kwargs"), [(QWEN3, capped(401_408)), (QWEN, capped(401_408)), (LLAVA, {})]
)
def test_vllm_s_processor_makes_as_much_of_it(lab, model: str, kwargs: dict[str, Any]) -> None:
    """The largest clip is real: the processor itself makes as many embeds of one."""
    opened = lab(model)
    few = {"media_io_kwargs": {"video": {"num_frames": 4, "max_frames": 4}}}
    clip = some(opened.budget(build_dummy=False, **kwargs, **few).largest_clip)
    frames = clip.num_frames
    shape = VideoShape(frames, 2.0, frames / 2, clip.width_px, clip.height_px)
    assert opened.cost(Blank(shape), **kwargs, **few).embeds == clip.embeds


def test_a_loader_that_keeps_every_frame_leaves_the_budget_as_the_bound(lab) -> None:
    every = {"media_io_kwargs": {"video": {"num_frames": -1, "fps": -1}}}
    budget = lab(LLAVA).budget(build_dummy=False, max_num_seqs=1, **every)
    assert budget.largest_clip is None
    assert budget.largest_item("video") == budget.encoder_budget_tokens
