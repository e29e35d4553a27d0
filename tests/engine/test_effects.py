"""Settings switched off once each, in the real vLLM (R8)."""

from typing import Any

import pytest

from mmcalib.decision.effects import Footprints, find_effects, probe_shapes
from mmcalib.limits.effects import Effect
from mmcalib.releases.release import VLLM_0_29
from tests.engine.conftest import Lab
from tests.upstream import NESTED, before

pytestmark = pytest.mark.engine
PAIR = {"longest_edge": 1_003_520, "shortest_edge": 3_136}
IMAGES: dict[str, Any] = {
    "limit_mm_per_prompt": {"image": 4, "video": 0},
    "max_model_len": 32_768,
    "max_num_batched_tokens": 8_960,
}
BOTH: dict[str, Any] = {**IMAGES, "limit_mm_per_prompt": {"image": 1, "video": 1}}


def switched_off(qwen: Lab, args: dict[str, Any]) -> tuple[dict[str, Effect], dict[str, Any]]:
    shapes = probe_shapes(qwen.opened.modalities)
    asked = Footprints(qwen.host, str(qwen.folder), qwen.opened.serve_defaults, shapes)
    found, left = find_effects(args, asked)
    return {effect.name: effect for effect in found}, left


@before(VLLM_0_29, NESTED)
def test_every_setting_of_a_calibration_has_an_effect(qwen: Lab) -> None:
    args = {**IMAGES, "mm_processor_kwargs": {"images_kwargs": {"size": PAIR}}}
    found, left = switched_off(qwen, args)
    assert left == args
    assert all(effect.has_effect for effect in found.values()), found
    cap = found["mm_processor_kwargs.images_kwargs.size"].words
    assert "largest image 1,280 → 16,384 tokens; encoder budget 8,960 → 16,384 tokens" in cap
    video = found["limit_mm_per_prompt.video"].words
    assert video.startswith("without it: largest video none → 8,960 tokens")
    assert found["max_model_len"].words == "without it: max_model_len 32,768 → 128,000"


def test_half_a_size_is_refused_and_so_both_edges_are_one_setting(qwen: Lab) -> None:
    found, _ = switched_off(qwen, {**IMAGES, "mm_processor_kwargs": {"size": PAIR}})
    assert "mm_processor_kwargs.size" in found
    assert not [name for name in found if name.endswith("_edge")]


@pytest.mark.parametrize(
    "idle",
    [
        {"mm_processor_kwargs": {"max_dynamic_patch": 4}},
        {"mm_processor_kwargs": {"max_pixel": 1_003_520}},
        {"mm_processor_kwargs": {"max_pixels": 12_845_056}},
        {"media_io_kwargs": {"video": {"num_frames": 8}}},
    ],
)
def test_what_this_model_does_not_heed_is_found(qwen: Lab, idle: dict[str, Any]) -> None:
    """Options of other models, a misspelt one, a default, and frames that the loader ignores."""
    found, left = switched_off(qwen, {**BOTH, **idle})
    assert left == BOTH
    assert [e.outcome for e in found.values() if e.path[0] in idle] == ["idle"]


def test_an_option_that_the_processor_refuses_is_seen_by_what_is_taken_without(qwen: Lab) -> None:
    kwargs = {"images_kwargs": {"num_crops": 4}}
    found, _ = switched_off(qwen, {**IMAGES, "mm_processor_kwargs": kwargs})
    words = found["mm_processor_kwargs.images_kwargs.num_crops"].words
    assert words == "without it: vLLM accepts image of 64×64"


def test_of_two_spellings_one_is_enough(qwen: Lab) -> None:
    pixels, size = {"max_pixels": 1_003_520}, {"size": PAIR}
    both = {**IMAGES, "mm_processor_kwargs": {"images_kwargs": {**pixels, **size}}}
    found, left = switched_off(qwen, both)
    assert [e.outcome for e in found.values()].count("idle") == 1
    assert left["mm_processor_kwargs"]["images_kwargs"] in (size, pixels)


def test_frames_of_the_loader_are_seen_in_long_clips_only(qwen: Lab) -> None:
    found, left = switched_off(qwen, {**BOTH, "media_io_kwargs": {"video": {"fps": 1}}})
    assert left["media_io_kwargs"] == {"video": {"fps": 1}}
    words = found["media_io_kwargs.video.fps"].words
    assert words.startswith("without it: video of 64×64, 1800 frames, 60.0 s 120 → 240 tokens")


def test_the_hint_that_shrinks_the_profile_has_an_effect(qwen: Lab) -> None:
    """It is an effect, though adequacy forbids it."""
    hint = {"count": 1, "width": 512, "height": 512}
    args = {**IMAGES, "limit_mm_per_prompt": {"image": hint, "video": 0}}
    found, left = switched_off(qwen, args)
    assert left == args
    words = "without it: profiled image 324 → 2,304 tokens"
    assert found["limit_mm_per_prompt.image.width"].words == words


def test_a_hint_beyond_the_maximum_has_none(qwen: Lab) -> None:
    hint = {"count": 1, "width": 9000, "height": 9000}
    found, left = switched_off(qwen, {**IMAGES, "limit_mm_per_prompt": {"image": hint, "video": 0}})
    assert found["limit_mm_per_prompt.image.width"].outcome == "idle"
    assert left["limit_mm_per_prompt"] == {"image": 1, "video": 0}


def test_what_neither_tokens_nor_budget_show_is_not_called_idle(qwen: Lab) -> None:
    args = {
        **IMAGES,
        "mm_processor_kwargs": {"do_normalize": False},
        "gpu_memory_utilization": 0.8,
        "enable_prefix_caching": False,
    }
    found, left = switched_off(qwen, args)
    assert left == args
    for name in ("mm_processor_kwargs.do_normalize", "gpu_memory_utilization"):
        assert found[name].outcome == "not shown"
