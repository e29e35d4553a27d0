"""Every value beside the chosen ones of all other options, and what else could be set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmcalib.census.prompts import PromptCensus
from mmcalib.derive.costs import CostTable
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import FrameSampling
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import ImageShape, Shape, VideoShape
from mmcalib.progress import Silent
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.grid import Grid, grid
from mmcalib.workflows.decision.held import held
from mmcalib.workflows.decision.long_requests import long_requests, turned_away
from mmcalib.workflows.decision.texts import Texts
from tests.workflows.corpora import corpus, decide, path_of
from tests.workflows.fake_host import FRAMES, KNOBS, FakeHost, VolumeHost, area_knob, opened

PAGE, ICON = ImageShape(1316, 756), ImageShape(84, 84)
CLIP = VideoShape(240, 30.0, 8.0, 280, 280)
FRAME_STEPS = (8, 16, FRAMES)
FPS = FrameSampling(path=("video", "num_frames"), value=FRAMES, steps=FRAME_STEPS)
MODEL = opened(knobs=(FPS, *KNOBS))


def source(model: ModelInfo, policy: Policy, host: type[FakeHost] = FakeHost) -> BudgetSource:
    return BudgetSource(host(model), model, "/models/pretend", policy)  # type: ignore[arg-type]


def beside(
    shapes: list[Shape],
    model: ModelInfo = MODEL,
    policy: Policy | None = None,
    host: type[FakeHost] = FakeHost,
) -> Decision:
    policy = policy or Policy()
    decided = decide(corpus(shapes), policy, model, host=host)
    return held(decided, source(model, policy, host), Silent())


def combinations(decision: Decision, model: ModelInfo = MODEL) -> Grid:
    return grid(decision, source(model, Policy()), Silent())


def test_a_chosen_value_is_what_was_decided() -> None:
    decision = beside([PAGE, CLIP])
    chosen = {(point.knob.name, point.value) for point in decision.chosen}
    found = [e for e in decision.explored if (e.point.knob.name, e.point.value) in chosen]
    assert len(found) == len(chosen) > 1
    assert all(e.budget == decision.budget for e in found)
    assert all(e.engine_args == decision.engine_args for e in found)


def test_another_value_stands_beside_the_chosen_ones() -> None:
    """Not beside the default of the other modality, whose largest item would hide it."""
    before = decide(corpus([PAGE, CLIP]), model=MODEL)
    after = beside([PAGE, CLIP])
    videos = {e.point.knob.name: e.point.value for e in after.explored if e.point in after.chosen}
    assert videos["videos_kwargs.size.longest_edge"] < area_knob("video").value
    for old, new in zip(before.explored, after.explored, strict=True):
        assert (old.point.knob, old.point.value) == (new.point.knob, new.point.value)
        if new.point.knob == area_knob("image"):
            assert (
                new.budget.max_tokens_per_item["video"]
                == (after.budget.max_tokens_per_item["video"])
            )
            assert (
                old.budget.max_tokens_per_item["video"] > (new.budget.max_tokens_per_item["video"])
            )


def test_frames_are_costed_again_where_the_chosen_cap_shrinks_them() -> None:
    """A cap of the whole clip leaves more of each frame where fewer are kept."""
    large = VideoShape(240, 30.0, 8.0, 1120, 1120)
    capped = Policy(max_tokens_per_item=400)
    decided = decide(corpus([large]), capped, MODEL, host=VolumeHost)
    assert any(p.items_downscaled for p in decided.chosen if not p.knob.by_loader)
    before = {e.point.value: e.point for e in decided.explored if e.point.knob == FPS}
    decision = beside([large], policy=capped, host=VolumeHost)
    after = {e.point.value: e.point for e in decision.explored if e.point.knob == FPS}
    assert before.keys() == after.keys()
    assert after[FRAMES].max_tokens == decision.table.costs[large].tokens
    assert after[FRAMES].max_tokens < before[FRAMES].max_tokens


def test_the_grid_has_each_value_with_each_context_and_the_decision() -> None:
    decision = beside([PAGE, CLIP])
    found = combinations(decision)
    assert {group.modalities for group in found.groups} == {("image",), ("video",)}
    assert len(found.contexts) == 6
    assert decision.budget.max_model_len in found.contexts
    (chosen,) = [one for one in found.combinations if one.chosen]
    assert chosen.engine_args == decision.engine_args
    own = [{s.budget_of for s in group.states} for group in found.groups]
    assert len(found.combinations) == len(own[0]) * len(own[1]) * len(found.contexts)
    for one in found.combinations:
        assert one.budget.max_model_len == one.max_model_len == one.engine_args["max_model_len"]


def test_frames_that_vllm_budgets_alike_are_not_asked_for() -> None:
    (videos,) = [g for g in combinations(beside([PAGE, CLIP])).groups if g.modalities == ("video",)]
    frames = [s for s in videos.states if s.turned and s.turned.point.knob == FPS]
    assert len(frames) == len(FRAME_STEPS) - 1
    assert {state.budget_of for state in frames} == {0}


def test_a_context_that_was_said_by_a_flag_stays() -> None:
    decision = beside([PAGE])
    budgets = replace(source(MODEL, Policy()), given={"max_model_len": 128_000})
    assert grid(decision, budgets, Silent()).contexts == (128_000,)


def away(table: CostTable, read_prompts: PromptCensus, decision: Decision, context: int) -> int:
    found = long_requests(read_prompts, decision.counts, decision.default_table, Texts())
    assert found is not None
    budget = replace(decision.budget, max_model_len=context)
    return turned_away(found, table.costs, budget, Texts(), 16, encoder_decoder=False)


def test_requests_longer_than_a_context_are_turned_away() -> None:
    two, three, icon = [PAGE, PAGE], [PAGE, PAGE, PAGE], [ICON]
    read = corpus([], [two, two, three, icon])
    decision = decide(read, model=MODEL)
    each = decision.table.costs[PAGE].tokens
    assert 2 * each > 2048
    prompts = read.prompts
    assert away(decision.table, prompts, decision, 128_000) == 0
    assert away(decision.table, prompts, decision, 3 * each) == 1
    assert away(decision.table, prompts, decision, 2 * each) == 3


def test_an_item_that_the_encoder_cache_does_not_hold_is_turned_away() -> None:
    large = ImageShape(2240, 2240)
    read = corpus([large, ICON])
    decision = decide(read, model=MODEL)
    (request,) = long_requests(read.prompts, decision.counts, decision.default_table, Texts()) or ()
    assert request.shapes == (large,)
    small = replace(decision.budget, encoder_cache_size=4096, encoder_compute_budget=4096)
    costs = decision.table.costs
    assert turned_away([request], costs, small, Texts(), 16, encoder_decoder=False) == 1
    assert turned_away([request], costs, decision.budget, Texts(), 16, encoder_decoder=False) == 0


@pytest.mark.parametrize("shape", [PAGE, CLIP])
def test_what_shapes_of_long_requests_cost_is_kept(shape: Shape) -> None:
    decision = decide(corpus([], [[shape] * 30, [ICON]]), model=MODEL)
    for explored in decision.explored:
        if explored.point.knob.modality == shape.modality:
            assert set(explored.costs) == {shape}
    assert path_of(shape)
