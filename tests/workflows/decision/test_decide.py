"""From costs to a configuration, end to end, against a pretend vLLM."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mmcalib.checks.facts import Decision
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.limits.costs import CostTable
from mmcalib.limits.policy import Policy
from tests.builders import some
from tests.workflows.corpora import corpus, decide
from tests.workflows.fake_host import (
    AUDIO_TOKENS,
    INERT,
    KNOBS,
    UNIT,
    UncappedHost,
    VolumeHost,
    area_knob,
    budget,
    opened,
)

EDGES = st.integers(1, 4200)
# vLLM's Qwen code refuses pictures more than 200 times as wide as high.
IMAGES = st.builds(ImageShape, EDGES, EDGES).filter(
    lambda s: max(s.width_px, s.height_px) <= 200 * min(s.width_px, s.height_px)
)
VIDEO_EDGES = st.integers(28, 1400)
VIDEOS = st.builds(
    VideoShape, st.integers(1, 900), st.just(30.0), st.just(9.0), VIDEO_EDGES, VIDEO_EDGES
)
CLIPS = st.builds(AudioShape, st.integers(1, 600_000), st.sampled_from([8000, 16000, 44100]))
ITEMS = IMAGES | VIDEOS | CLIPS
CORPORA = st.lists(ITEMS, min_size=1, max_size=8)
REQUESTS = st.lists(st.lists(ITEMS, min_size=1, max_size=4), min_size=1, max_size=5)
POLICIES = st.builds(
    Policy,
    prefer=st.sampled_from(["quality", "throughput"]),
    coverage=st.sampled_from([0.5, 0.9, 1.0]),
    max_tokens_per_item=st.none() | st.integers(1, 20_000),
)
few = settings(max_examples=40)


def tokens(table: CostTable) -> dict[Shape, int]:
    return {shape: cost.tokens for shape, cost in table.costs.items()}


def encoder_tokens(decision: Decision) -> int:
    return min(decision.budget.encoder_compute_budget, decision.budget.encoder_cache_size)


@few
@given(CORPORA, REQUESTS | st.just([]), POLICIES)
def test_every_item_is_admitted_and_the_worst_step_reserved(shapes, requests, policy) -> None:
    decision = decide(corpus(shapes, requests), policy)
    over = [c for c in decision.table.costs.values() if c.embeds > encoder_tokens(decision)]
    assert over == []
    assert decision.adequacy.ratio >= 1


def test_a_skipped_profile_reserves_nothing() -> None:
    found = decide(corpus([ImageShape(640, 480)]), given={"skip_mm_profiling": True})
    assert (found.adequacy.profiled_tokens, found.adequacy.passes) == (0, False)


@few
@given(CORPORA)
def test_quality_downscales_nothing_and_throughput_reserves_no_more(shapes) -> None:
    quality = decide(corpus(shapes))
    assert tokens(quality.table) == tokens(quality.default_table)
    throughput = decide(corpus(shapes), Policy(prefer="throughput"))
    for modality, most in throughput.budget.max_tokens_per_item.items():
        assert most <= quality.budget.max_tokens_per_item[modality]


@few
@given(CORPORA, POLICIES)
def test_a_size_hint_is_written_only_where_it_is_honest(shapes, policy: Policy) -> None:
    decision = decide(corpus(shapes), policy)
    asked = budget(opened(), decision.engine_args, build_dummy=True)
    for modality in decision.hints:
        heaviest = some(decision.table.heaviest(modality))
        assert asked.dummies[modality].embeds >= asked.max_tokens_per_item[modality]
        assert asked.dummies[modality].embeds >= heaviest.embeds
    assert set(decision.hints) | set(decision.refused_hints) == set(decision.table.modalities())
    assert not set(decision.hints) & set(decision.refused_hints)


@few
@given(
    st.lists(st.builds(ImageShape, st.integers(1000, 3000), st.integers(1000, 3000)), min_size=1),
    st.integers(64, 20_000),
)
def test_max_tokens_per_item_is_kept_to(shapes, cap: int) -> None:
    decision = decide(corpus(shapes), Policy(max_tokens_per_item=cap))
    assert max(cost.embeds for cost in decision.table.columns_of("image")) <= cap
    assert decision.budget.max_tokens_per_item["image"] <= cap


@few
@given(CORPORA, REQUESTS, POLICIES)
def test_the_order_of_the_corpus_does_not_matter(shapes, requests, policy: Policy) -> None:
    one = decide(corpus(shapes), policy)
    two = decide(corpus(shapes[::-1]), policy)
    assert one.engine_args == two.engine_args
    assert decide(corpus([], requests), policy) == decide(corpus([], requests), policy)


def emitted(*shapes: Shape) -> dict[str, Any]:
    return decide(corpus(shapes)).engine_args


def test_the_cap_that_fits_the_corpus_exactly() -> None:
    """810×1080 is 29 × 39 tokens; turned, since vLLM's own largest picture lies across."""
    assert emitted(ImageShape(810, 1080), ImageShape(600, 400)) == {
        "limit_mm_per_prompt": {
            "image": {"count": 1, "width": 1080, "height": 810},
            "video": 0,
            "audio": 0,
        },
        "mm_processor_kwargs": {
            "images_kwargs": {"size": {"longest_edge": 1131 * UNIT, "shortest_edge": 4 * UNIT}}
        },
        "max_model_len": 128_000,
        "max_num_batched_tokens": 2262,
    }


def test_a_clip_is_hinted_only_at_its_longest() -> None:
    assert emitted(AudioShape(16000, 16000))["limit_mm_per_prompt"]["audio"] == 1
    longest = AudioShape(AUDIO_TOKENS * 640, 16000)
    assert emitted(longest)["limit_mm_per_prompt"]["audio"] == {"count": 1, "length": 480_000}


def test_a_knob_without_effect_is_reported_and_not_emitted() -> None:
    decision = decide(corpus([ImageShape(280, 280)]), model=opened(knobs=(*KNOBS, INERT)))
    assert decision.ineffective == (INERT,)
    assert "num_crops" not in decision.engine_args["mm_processor_kwargs"]
    assert len([e for e in decision.explored if e.point.knob == INERT]) == INERT.value


def test_a_slim_picture_may_cost_more_than_the_cap_and_still_be_admitted() -> None:
    slim = ImageShape(28, 28 * 190)
    decision = decide(corpus([slim]), Policy(max_tokens_per_item=64))
    largest = decision.table.costs[slim].embeds
    assert largest > decision.budget.max_tokens_per_item["image"] == 64
    assert encoder_tokens(decision) >= largest
    assert "image" in decision.refused_hints


def test_counts_come_from_requests() -> None:
    a, v = ImageShape(280, 280), VideoShape(8, 8.0, 1.0, 280, 280)
    read = corpus([], [[a], [a, a, v], [a], [a]])
    counts = decide(read).counts
    assert (counts["image"].value, counts["image"].exemplar) == (2, "r.jsonl:2")
    assert (counts["image"].label, counts["audio"].value) == ("computed", 0)
    covered = decide(read, Policy(coverage=0.75)).counts
    assert covered["image"].value == 1
    assert (covered["video"].value, covered["video"].label) == (1, "assumed")


def test_a_cap_that_takes_nothing_off_the_budget_is_left_out() -> None:
    """It would only shrink what is profiled for a step that may be as large as before."""
    read = corpus([ImageShape(280, 280)])
    heeded, unheeded = decide(read), decide(read, host=UncappedHost)
    assert "mm_processor_kwargs" in heeded.engine_args
    assert "mm_processor_kwargs" not in unheeded.engine_args
    assert unheeded.adequacy.passes
    # What is asked for is given, though it shrinks no item, and the check says what it does.
    for cap in (50, 400):
        wanted = decide(read, Policy(max_tokens_per_item=cap), host=UncappedHost)
        assert "mm_processor_kwargs" in wanted.engine_args
        assert not wanted.adequacy.passes


def test_a_cap_that_bounds_all_frames_together_is_found_by_measuring() -> None:
    """The same option means an area in one processor and a volume in the next."""
    video = replace(area_knob("video"), value=768 * 32 * UNIT)
    clips = [VideoShape(300, 30.0, 10.0, 640, 280), VideoShape(60, 30.0, 2.0, 160, 120)]
    decision = decide(corpus(clips), model=opened(knobs=(video,)), host=VolumeHost)
    assert tokens(decision.table) == tokens(decision.default_table)
    size = decision.engine_args["mm_processor_kwargs"]["videos_kwargs"]["size"]
    # 640×280 are 23×10 cells, and 32 frames of them are kept.
    assert size["longest_edge"] == 23 * 10 * 32 * UNIT


def test_no_count_exceeds_what_the_model_takes() -> None:
    model = opened({"image": 2, "video": None})
    counts = decide(corpus([ImageShape(28, 28)]), Policy(count={"image": 7}), model).counts
    assert counts["image"].value == 2
    assert counts["image"].reason == "the model takes at most 2; given: --count image=7"


def test_a_model_that_cannot_chunk_gets_room_for_a_whole_item() -> None:
    decision = decide(corpus([ImageShape(2800, 1400)]), model=opened(chunks=False))
    assert decision.engine_args["max_num_batched_tokens"] >= 5000
