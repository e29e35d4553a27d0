"""Every value beside the chosen ones of all other options."""

from __future__ import annotations

from mmcalib.decision.decide import at_chosen_values
from mmcalib.decision.decision import Decision
from mmcalib.decision.explore import BudgetSource
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import FrameSampling
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import ImageShape, Shape, VideoShape
from mmcalib.progress import Silent
from tests.workflows.corpora import corpus, decide
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
    return at_chosen_values(decided, source(model, policy, host), Silent())


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
    assert any(p.items_downscaled for p in decided.chosen if not p.knob.is_loader_option)
    before = {e.point.value: e.point for e in decided.explored if e.point.knob == FPS}
    decision = beside([large], policy=capped, host=VolumeHost)
    after = {e.point.value: e.point for e in decision.explored if e.point.knob == FPS}
    assert before.keys() == after.keys()
    assert after[FRAMES].max_tokens == decision.table.costs[large].tokens
    assert after[FRAMES].max_tokens < before[FRAMES].max_tokens
