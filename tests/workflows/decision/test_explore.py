"""Every point of the frontier, counted where vLLM's count holds and measured where it does not."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcalib.checks.facts import Decision
from mmcalib.decision.explore import BudgetSource, at_chosen_values
from mmcalib.domain.knobs import FrameSampling
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import ImageShape, Shape, VideoShape
from mmcalib.engine.messages import CountEmbeds, EmbedCounts, Measure, Measured
from mmcalib.errors import VllmRefused
from mmcalib.limits.policy import Policy
from mmcalib.progress import Silent
from tests.workflows.corpora import corpus, decide, many_images
from tests.workflows.fake_host import (
    FRAMES,
    KNOBS,
    FakeHost,
    Miscounting,
    Uncounted,
    VolumeHost,
    area_knob,
    cap,
    opened,
)

SHAPES = [ImageShape(200 + 37 * n, 3000 - 61 * n) for n in range(40)]
CLIPS = [VideoShape(60 + n, 30.0, 2.0 + n / 30, 300 + 29 * n, 240) for n in range(40)]
EDGES = st.integers(30, 4000)
PHOTOS = st.lists(st.builds(ImageShape, EDGES, EDGES), min_size=9, max_size=20, unique=True)


class Unable(FakeHost):
    def count(self, request: CountEmbeds) -> EmbedCounts:
        raise VllmRefused("no such method")


class Counting(FakeHost):
    """Notes how many items it processed."""

    processed = 0

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        type(self).processed += len(request.subjects)
        return super().measure(request, doing)


def points(shapes: list[Shape], host: type[FakeHost], **model: Any) -> list[tuple[object, ...]]:
    found = decide(corpus(shapes), model=opened(**model), host=host).explored
    return [
        (p.knob.name, p.value, p.max_tokens, p.p99_tokens, p.p50_tokens, p.items_downscaled,
         p.mean_retention, p.worst_retention, p.max_embeds)
        for p in (e.point for e in found)
    ]  # fmt: skip


@settings(max_examples=20)
@given(PHOTOS)
def test_counting_gives_what_measuring_gives(shapes) -> None:
    assert points(shapes, FakeHost) == points(shapes, Uncounted)


@pytest.mark.parametrize("host", [Miscounting, Uncounted, Unable])
def test_without_a_count_that_holds_everything_is_measured(host: type[FakeHost]) -> None:
    decision = decide(corpus([*SHAPES, *CLIPS]), host=host)
    assert not any(e.point.counted for e in decision.explored)
    assert points([*SHAPES, *CLIPS], host) == points([*SHAPES, *CLIPS], FakeHost)


def test_counting_processes_a_few_items_of_each_point() -> None:
    Counting.processed = 0
    decision = decide(corpus(SHAPES), host=Counting)
    values = len(decision.explored)
    assert any(e.point.counted for e in decision.explored)
    # Under the default, under the choice, and spots; the sample's files come on top.
    assert Counting.processed < 3 * len(SHAPES) + values * 12


def test_a_knob_that_bleeds_is_measured_on_what_it_bleeds_into() -> None:
    bleeding = replace(area_knob("image"), bleeds=("video",))
    model = opened(knobs=(bleeding, KNOBS[1]))
    Counting.processed = 0
    decision = decide(corpus([*SHAPES, *CLIPS]), model=model, host=Counting)
    images = [e.point for e in decision.explored if e.point.knob == bleeding]
    assert not any(point.counted for point in images)
    assert Counting.processed >= (len(images) - 1) * (len(SHAPES) + len(CLIPS))


class HalfCap(FakeHost):
    """A host whose cap bounds at half of its value: pictures change that should not."""

    def cost(self, shape: Shape, kwargs: Mapping[str, Any]) -> Cost:
        if not kwargs or not isinstance(shape, ImageShape):
            return super().cost(shape, kwargs)
        half = {"longest_edge": cap("image", kwargs) // 2}
        return super().cost(shape, {"images_kwargs": {"size": half}})


class HalfUncounted(HalfCap, Uncounted):
    """The same, without a count."""


@pytest.mark.parametrize("hosts", [(FakeHost, Uncounted), (HalfCap, HalfUncounted)])
def test_of_many_shapes_those_are_counted_that_a_value_changes(hosts) -> None:
    shapes: list[Shape] = [*many_images(2_500)]
    counting, measuring = hosts
    assert points(shapes, counting) == points(shapes, measuring)


PAGE, CLIP = ImageShape(1316, 756), VideoShape(240, 30.0, 8.0, 280, 280)
FPS = FrameSampling(path=("video", "num_frames"), value=FRAMES, steps=(8, 16, FRAMES))
MODEL = opened(knobs=(FPS, *KNOBS))


def beside(
    shapes: list[Shape], policy: Policy | None = None, host: type[FakeHost] = FakeHost
) -> Decision:
    policy = policy or Policy()
    decided = decide(corpus(shapes), policy, MODEL, host=host)
    there = BudgetSource(host(MODEL), MODEL, "/models/pretend", policy)  # type: ignore[arg-type]
    return at_chosen_values(decided, there, Silent())


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
            was, found = (one.budget.max_tokens_per_item["video"] for one in (old, new))
            assert was > found == after.budget.max_tokens_per_item["video"]


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
