"""The knobs that are found, against what vLLM's processor and budget make of them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mmcalib.census.census import Census
from mmcalib.checks.facts import Explored
from mmcalib.decision.explore import BudgetSource, explore
from mmcalib.decision.measure import measure
from mmcalib.domain import knobs
from mmcalib.domain.knobs import AreaCap, FrameSampling, Knob, Setting, TokenCap
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.messages import Blank
from mmcalib.limits import frontier
from mmcalib.limits.costs import CostTable
from mmcalib.limits.frontier import choose_point
from mmcalib.limits.policy import Policy
from mmcalib.progress import Silent
from mmcalib.releases.release import VLLM_0_29, VLLM_0_30, VLLM_0_31, VLLM_0_32, VLLM_0_33
from tests.builders import expect
from tests.engine.conftest import QWEN, Lab
from tests.programs import answer_of
from tests.upstream import NESTED, QIANFAN, before, between, since

pytestmark = pytest.mark.engine
INTERNVL, GEMMA4 = "OpenGVLab/InternVL2-2B", "google/gemma-4-31B-it"
QWEN_AUDIO = "Qwen/Qwen2-Audio-7B-Instruct"
PHOTO = Blank(ImageShape(2400, 900))
CLIP = Blank(VideoShape(300, 30.0, 10.0, 640, 360))
SIZES = [(640, 480), (900, 2400), (1024, 1024), (333, 1111), (61, 47), (1920, 1080), (1530, 509)]


def found(lab: Lab) -> dict[str, Knob]:
    return {knob.name: knob for knob in lab.opened.knobs}


def embeds(lab: Lab, blank: Blank, setting: Setting) -> int:
    return expect(Cost, lab.costs(blank, setting=setting)[0]).embeds


def moved(lab: Lab, knob: Knob, value: float) -> tuple[bool, bool, bool]:
    """Whether the value moves items of the knob's modality, vLLM's budget for them, and others."""
    setting = frontier.setting_at(knob, value)
    own, other = (PHOTO, CLIP) if knob.modality == "image" else (CLIP, PHOTO)
    item = embeds(lab, own, setting) != embeds(lab, own, Setting())
    kwargs = {knob.argument: getattr(setting, knob.argument)}
    budget = [
        lab.budget(build_dummy=False, max_num_batched_tokens=lab.opened.max_model_len, **changes)
        for changes in (kwargs, {})
    ]
    now, default = (one.max_tokens_per_item[knob.modality] for one in budget)
    spilled = other.modality in lab.opened.modalities and (
        embeds(lab, other, setting) != embeds(lab, other, Setting())
    )
    return item, now != default, spilled


def counts_like_the_processor(lab: Lab, setting: Setting, *more: Blank) -> bool:
    blanks = (*(Blank(ImageShape(w, h)) for w, h in SIZES), *more)
    return len(lab.costs_as_counted(*blanks, setting=setting)) == len(blanks)


@before(VLLM_0_29, NESTED)
def test_qwen_s_areas_move_their_own_modality_alone(qwen: Lab) -> None:
    there = found(qwen)
    assert list(there) == [
        "images_kwargs.size.longest_edge",
        "videos_kwargs.size.longest_edge",
        "video.fps",
    ]
    assert [type(knob) for knob in there.values()] == [AreaCap, AreaCap, FrameSampling]
    for name in list(there)[:2]:
        assert not there[name].bleeds
        assert expect(AreaCap, there[name]).token_px == 28 * 28
        assert moved(qwen, there[name], 256 * 784) == (True, True, False)
    item, _, spilled = moved(qwen, there["video.fps"], 1)
    assert (item, spilled) == (True, False)
    assert len(expect(FrameSampling, there["video.fps"]).steps) == 8
    setting = frontier.setting_at(there["images_kwargs.size.longest_edge"], 256 * 784)
    assert counts_like_the_processor(qwen, setting, CLIP)


@pytest.mark.parametrize("model_id", ["Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"])
def test_both_areas_may_be_capped_at_once(lab: Callable[[str], Lab], model_id: str) -> None:
    """vLLM 0.29 and 0.30 overwrite a video's nested `size`, which Qwen3-VL's processor rejects."""
    opened = lab(model_id)
    caps = [knob for knob in opened.opened.knobs if isinstance(knob, AreaCap)]
    assert [cap.modality for cap in caps] == ["image", "video"]
    alone = {cap.modality: frontier.setting_at(cap, 128 * 784) for cap in caps}
    both = knobs.merge_settings(alone.values())
    for blank in (PHOTO, CLIP):
        kept = embeds(opened, blank, both)
        assert kept == embeds(opened, blank, alone[blank.modality])
        assert kept < embeds(opened, blank, Setting())


@since(VLLM_0_33, QIANFAN)
def test_a_cap_of_omni_s_clips_keeps_the_least_area_of_its_processor(lab) -> None:
    """It enlarges small frames more than its video processor alone would."""
    omni = lab("Qwen/Qwen2.5-Omni-3B")
    cap = expect(AreaCap, found(omni)["videos_kwargs.size.longest_edge"])
    assert cap.least_px == 128 * 28 * 28
    small = Blank(VideoShape(96, 24.0, 4.0, 320, 240))
    usual = embeds(omni, small, Setting())
    assert embeds(omni, small, frontier.setting_at(cap, 768 * 28 * 28)) == usual == 560


def test_internvl_s_tiles(lab: Callable[[str], Lab]) -> None:
    """Its processor refuses `images_kwargs` and heeds the flat name."""
    opened = lab(INTERNVL)
    assert list(found(opened)) == ["max_dynamic_patch"]
    knob = expect(knobs.TileCap, found(opened)["max_dynamic_patch"])
    assert moved(opened, knob, 4) == (True, True, False)
    assert counts_like_the_processor(opened, frontier.setting_at(knob, 4))


def test_gemma_s_pan_and_scan(lab: Callable[[str], Lab]) -> None:
    opened = lab("google/gemma-3-4b-it")
    name = "images_kwargs.pan_and_scan_max_num_crops"
    assert list(found(opened)) == [name]
    knob = expect(knobs.CropCap, found(opened)[name])
    assert (knob.value, knob.steps) == (0, (0, 2, 3, 4)), "the checkpoint has it off"
    assert moved(opened, knob, 2) == (True, True, False)
    made = [embeds(opened, PHOTO, frontier.setting_at(knob, value)) for value in knob.steps]
    assert made == [256 * (1 + crops) for crops in (0, 2, 3, 3)]
    assert counts_like_the_processor(opened, frontier.setting_at(knob, 3))


def test_idefics_longest_edge(lab: Callable[[str], Lab]) -> None:
    """Heeded in the flat spelling only: vLLM asks the processor with the merged kwargs."""
    opened = lab("HuggingFaceM4/Idefics3-8B-Llama3")
    assert list(found(opened)) == ["size.longest_edge"]
    knob = expect(knobs.EdgeCap, found(opened)["size.longest_edge"])
    assert (knob.value, knob.steps) == (1456, (364, 728, 1092, 1456))
    assert moved(opened, knob, 728) == (True, True, False)
    scoped = Setting({"images_kwargs": {"size": {"longest_edge": 728}}})
    assert embeds(opened, PHOTO, scoped) == embeds(opened, PHOTO, Setting())


def test_llava_heeds_no_option(lab: Callable[[str], Lab]) -> None:
    opened = lab("llava-hf/llava-v1.6-mistral-7b-hf")
    assert found(opened) == {}
    default = embeds(opened, PHOTO, Setting())
    for kwargs in (
        {"size": {"shortest_edge": 168}},
        {"crop_size": {"height": 168, "width": 168}},
        {"images_kwargs": {"image_grid_pinpoints": [[336, 672]]}},
    ):
        assert embeds(opened, PHOTO, Setting(kwargs)) == default


@between(VLLM_0_29, VLLM_0_31, "`truncation` is heeded by modality: 0.29 and 0.30 cut off no sound")
def test_sound_has_no_knob(lab: Callable[[str], Lab]) -> None:
    """`chunk_length` cuts clips and vLLM's reserve, but the encoder takes 30 s exactly."""
    opened = lab(QWEN_AUDIO)
    assert found(opened) == {}
    minute = Blank(AudioShape(60 * 16_000, 16_000))
    assert embeds(opened, minute, Setting({"chunk_length": 10})) == 250


@before(VLLM_0_32, "0.31 says `truncation` itself, and the processor refuses it said twice")
def test_sound_beyond_the_encoder_is_cut_off_whatever_is_said(lab: Callable[[str], Lab]) -> None:
    minute = Blank(AudioShape(60 * 16_000, 16_000))
    assert embeds(lab(QWEN_AUDIO), minute, Setting({"audio_kwargs": {"truncation": False}})) == 750


_ONLY_FLAT = """
import json, sys
from mmcalib.child.knobs import Trial
from mmcalib.child.model import OpenedModel
from mmcalib.engine.messages import OpenModel
from mmcalib.domain.knobs import DEFAULT

model = OpenedModel(OpenModel(sys.argv[1]))
trial = Trial(model.with_setting(DEFAULT), model.with_setting)
flat = (("size", "longest_edge"), {"shortest_edge": 3136})
scoped = (("images_kwargs", "size", "longest_edge"), {"shortest_edge": 3136})
deaf = (("no_such_option",), {})
heard = [[flat], [deaf, flat, scoped], [deaf]]
print(json.dumps([next(trial.effective_options(one, 100_000, "image"), None) for one in heard]))
"""


def test_a_spelling_that_bleeds_is_taken_last_and_marked(qwen: Lab) -> None:
    """In a child of its own: no installed release leaves Qwen with the flat spelling alone."""
    flat, preferred, none = answer_of("-c", _ONLY_FLAT, qwen.folder)
    assert flat == [[["size", "longest_edge"], {"shortest_edge": 3136}], ["video"]]
    assert preferred[0][0] == ["images_kwargs", "size", "longest_edge"]
    assert preferred[1] == []
    assert none is None


@before(VLLM_0_30, "`max_soft_tokens` is spelled without `images_kwargs`")
def test_gemma_4_s_soft_tokens(lab: Callable[[str], Lab]) -> None:
    opened = lab(GEMMA4)
    (knob,) = (knob for knob in opened.opened.knobs if isinstance(knob, TokenCap))
    assert (knob.path, knob.value) == (("images_kwargs", "max_soft_tokens"), 280)
    photo, counts = Blank(ImageShape(3072, 2048)), []
    for value in knob.steps:
        counts.append(embeds(opened, photo, frontier.setting_at(knob, value)))
        assert value * 0.8 < counts[-1] <= value
    assert counts == sorted(set(counts))


def frontier_of(lab: Lab, knob: Knob, shapes: Sequence[Shape]) -> tuple[CostTable, list[Explored]]:
    """The items' costs by default, and the knob's points as `run` explores them."""
    census = Census()
    for shape in shapes:
        census.add(shape, f"/media/{shape}")
    default, _ = measure(lab.host, census, Setting(), (), Silent())
    budgets = BudgetSource(lab.host, lab.opened, str(lab.folder), Policy())
    per_prompt: dict[str, Any] = {m: int(m == knob.modality) for m in lab.opened.modalities}
    return default, explore(knob, default, per_prompt, budgets, Silent())


def above_default(lab: Lab, knob: Knob, shapes: Sequence[Shape]) -> dict[float, list[int]]:
    """Embeds of each item by vLLM's processor; every point above the default sums up the same."""
    default, explored = frontier_of(lab, knob, shapes)
    usual, costs = default.columns_of(knob.modality), {}
    for e in (e for e in explored if e.point.is_beyond_default):
        real = lab.costs(*(Blank(shape) for shape in usual.shapes), setting=e.point.setting)
        tokens = [cost.tokens for cost in real if isinstance(cost, Cost)]
        embeds = [cost.embeds for cost in real if isinstance(cost, Cost)]
        assert len(tokens) == len(shapes)
        ratios = [now / before for now, before in zip(tokens, usual.tokens, strict=True)]
        assert e.point.max_tokens == max(tokens)
        assert e.point.max_embeds == max(embeds) <= e.budget.max_tokens_per_item[knob.modality]
        assert e.point.p50_tokens == sorted(tokens)[(len(tokens) - 1) // 2]
        assert e.point.mean_enlargement == pytest.approx(sum(ratios) / len(ratios), rel=1e-12)
        costs[e.point.value] = embeds
    return costs


# Enough for the frontier to take vLLM's count instead of processing each.
MANY = [ImageShape(200 + 331 * n % 3900, 180 + 577 * n % 2900) for n in range(40)]


@before(VLLM_0_30, "`max_soft_tokens` is spelled without `images_kwargs`")
def test_gemma_4_above_its_default_is_the_processor_token_for_token(lab) -> None:
    opened = lab(GEMMA4)
    (knob,) = (knob for knob in opened.opened.knobs if isinstance(knob, TokenCap))
    assert list(above_default(opened, knob, MANY)) == [560, 1120]
    # Patches of 16 pixels, pooled 3 × 3: an image of more than 48² pixels a token loses some.
    assert knob.token_px == 48**2
    _, explored = frontier_of(opened, knob, MANY)
    areas = [shape.width_px * shape.height_px for shape in MANY]
    for e in explored:
        assert e.point.items_shrunk == sum(area > e.point.value * 48**2 for area in areas)
        gaining = sum(area > 280 * 48**2 for area in areas) * (e.point.value > 280)
        assert e.point.items_gaining == gaining


@since(VLLM_0_33, QIANFAN)
def test_internvl_s_frontier_ends_where_its_tiles_hold_every_image(lab) -> None:
    """2550 × 3300 pixels fill 41.9 tiles of 448 × 448, but below 48 vLLM takes 3 × 4 of them."""
    opened = lab(INTERNVL)
    knob = found(opened)["max_dynamic_patch"]
    page, icon = ImageShape(2550, 3300), ImageShape(448, 448)
    assert above_default(opened, knob, [page, icon]) == {48: [256, 49 * 256]}
    _, explored = frontier_of(opened, knob, [page, icon])
    shrunk = {e.point.value: e.point.items_shrunk for e in explored if e.point.value >= 12}
    assert shrunk == {12: 1, 48: 0}


@pytest.mark.parametrize(
    ("model_id", "expected"),
    # Qwen3-VL caps a clip: 15 pairs of frames of 60 × 34 tokens. Qwen2.5-VL caps a frame.
    [("Qwen/Qwen3-VL-2B-Instruct", [37_748_736, 50_331_648, 62_668_800]), (QWEN, [])],
)
def test_detail_raises_the_cap_of_clips_that_the_default_shrinks(lab, model_id, expected) -> None:
    opened = lab(model_id)
    (knob,) = (k for k in opened.opened.knobs if isinstance(k, AreaCap) and k.modality == "video")
    clips = [VideoShape(870, 60.0, 14.5, 1920, 1080), VideoShape(315, 30.0, 10.5, 640, 360)]
    costs = above_default(opened, knob, clips)
    assert list(costs) == expected
    assert max(map(max, costs.values()), default=30_600) == 30_600
    _, explored = frontier_of(opened, knob, clips)
    points = [e.point for e in explored]
    usual, detailed = (choose_point(points, Policy(prefer=p)).value for p in ("quality", "detail"))
    assert usual <= knob.value
    assert detailed == max(expected, default=usual)
