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


PLAIN, HINTED = 1, {"count": 1, "width": 512, "height": 512}
CAP = {"mm_processor_kwargs": {"max_pixels": 1_003_520}}


@pytest.mark.parametrize(
    ("image", "batch", "cap", "largest", "dummy", "profiled", "worst"),
    [
        pytest.param(PLAIN, 8192, {}, 16_384, 16_384, 16_384, 16_384, id="no video"),
        # Only the profiled item shrinks, not what a step may encode.
        pytest.param(HINTED, 8192, {}, 16_384, 324, 324, 16_384, id="a hint is a trap"),
        pytest.param(PLAIN, 7680, CAP, 1280, 1280, 7680, 7680, id="a cap"),
    ],
)
def test_images_alone(qwen: Lab, image, batch, cap, largest, dummy, profiled, worst) -> None:
    only = {"image": image, "video": 0}
    budget = qwen.budget(limit_mm_per_prompt=only, max_num_batched_tokens=batch, **cap)
    assert budget.max_tokens_per_item == {"image": largest}
    assert budget.encoder_compute_budget == budget.encoder_cache_size == worst
    assert budget.dummies["image"].embeds == dummy
    found = compute_reserve(budget, {"image": 1, "video": 0})
    assert (found.profiled_tokens, found.worst_step_tokens) == (profiled, worst)
    assert found.passes is (profiled == worst)


QWEN3, LLAVA = "Qwen/Qwen3-VL-2B-Instruct", "llava-hf/llava-onevision-qwen2-7b-ov-hf"


def capped(longest_edge: int) -> dict[str, Any]:
    """In the spelling that every release takes; it caps images, too."""
    size = {"shortest_edge": 4096, "longest_edge": longest_edge}
    return {"mm_processor_kwargs": {"size": size}}


# No step exceeds what the cap allows plus rounding; two sequences filled all 16,384 tokens. Each
# step in time is one cell at least, though: 768 frames are 384, whatever the cap.
@pytest.mark.parametrize(
    ("longest_edge", "most", "clip", "suffix"),
    [(4_014_080, 1960, 1960, ""), (401_408, 196, 384, " (videos of up to {})")],
)
def test_a_cap_of_whole_clips_bounds_the_worst_step(lab, longest_edge, most, clip, suffix) -> None:
    budget = lab(QWEN3).budget(max_num_seqs=2, max_num_batched_tokens=8192, **capped(longest_edge))
    assert budget.max_tokens_per_item["video"] == most
    found = compute_reserve(budget, {"image": 0, "video": 1})
    assert found.worst_step_tokens == 2 * clip
    assert found.clip_suffix == suffix.format(budget.largest_clip)


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
