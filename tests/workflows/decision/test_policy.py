"""The policy's wishes beyond the corpus: context, memory, quality floor, coverage."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmcalib.checks.facts import Decision
from mmcalib.checks.items import least_kept
from mmcalib.domain.knobs import FrameSampling
from mmcalib.domain.model import Retention
from mmcalib.domain.shapes import ImageShape, Shape, VideoShape
from mmcalib.limits.policy import Policy
from mmcalib.limits.values import MIN_RESERVE_RATIO
from mmcalib.workflows.run.document import evidence
from mmcalib.workflows.run.stages import check_decision
from tests.builders import some
from tests.workflows.corpora import corpus, decide, path_of
from tests.workflows.fake_host import UNIT, VolumeHost, area_knob, opened

SIDES = st.integers(28, 3600)
ITEMS = st.builds(ImageShape, SIDES, SIDES) | st.builds(
    VideoShape, st.integers(2, 300), st.just(30.0), st.just(9.0), SIDES, SIDES
)
REQUESTS = st.lists(st.lists(ITEMS, min_size=1, max_size=3), min_size=1, max_size=5)
POLICIES = st.builds(
    Policy,
    prefer=st.sampled_from(["quality", "throughput"]),
    coverage=st.sampled_from([0.5, 0.9, 1.0]) | st.just({"image": 0.5}),
    max_model_len=st.sampled_from([None, "fit", 4096, 16384]),
    min_image_pixels=st.sampled_from([0, 100_000]),
)
few = settings(max_examples=40)
PAGE = ImageShape(2800, 2240)  # 8,000 tokens
STAMP = ImageShape(280, 280)
FRAMES = FrameSampling(path=("video", "num_frames"), value=32, steps=(4, 8, 16, 32))


def longest_media(decision: Decision) -> int:
    return some(decision.longest).longest.item_tokens


@few
@given(REQUESTS, POLICIES)
def test_what_is_not_admitted_or_reserved_is_a_no(requests, policy: Policy) -> None:
    """Every covered prompt is admitted, and nothing is under-reserved, or the verdict says so."""
    read = corpus([], requests)
    decision = decide(read, policy)
    failed = {c.name for c in check_decision(read, {}, decision, policy) if c.status == "fail"}
    counts = {m: count.value for m, count in decision.counts.items()}
    context = decision.engine_args["max_model_len"]
    within = [e for e in read.prompts.signatures() if e.signature.fits(counts)]
    for entry in within:
        costs = [decision.table.costs[shape] for shape in entry.signature.shapes]
        assert all(cost.embeds <= decision.budget.encoder_budget_tokens for cost in costs)
        fits = sum(cost.tokens for cost in costs) + policy.text_reserve_tokens <= context
        assert fits or "prompt length" in failed
    share = policy.coverage if isinstance(policy.coverage, float) else 0.0
    assert sum(entry.count for entry in within) >= share * len(requests) - 1e-9
    assert decision.adequacy.ratio >= MIN_RESERVE_RATIO or "memory reserve" in failed


@few
@given(REQUESTS, st.sampled_from([{}, {"max_model_len": "fit"}]))
def test_more_coverage_never_gives_smaller_limits(requests, more) -> None:
    read = corpus([], requests)
    found = [decide(read, Policy(coverage=share, **more)) for share in (0.25, 0.5, 0.75, 1.0)]
    for less, all_ in pairwise(found):
        for modality, count in all_.counts.items():
            assert less.counts[modality].value <= max(1, count.value)
        assert less.engine_args["max_model_len"] <= all_.engine_args["max_model_len"]


CLIP = VideoShape(25, 30.0, 9.0, 28, 28)


@few
@given(REQUESTS, REQUESTS)
# One of other size may have another text, though it is as long: none of them is counted alone.
@example([[CLIP], [CLIP]], [[replace(CLIP, num_frames=2)]])
def test_a_larger_corpus_never_tightens_what_is_admitted(one, two) -> None:
    """Merging keeps every check at least as hard to pass: limits, items and context only grow."""
    policy = Policy(max_model_len="fit")
    part, whole = decide(corpus([], one), policy), decide(corpus([], [*one, *two]), policy)
    for modality, count in part.counts.items():
        assert count.value <= whole.counts[modality].value
        most = part.table.heaviest(modality)
        if most is not None:
            assert most.embeds <= whole.table.costs[most.shape].embeds
    assert part.engine_args["max_model_len"] <= whole.engine_args["max_model_len"]
    assert longest_media(part) <= longest_media(whole)


def test_a_context_that_fits_holds_the_longest_prompt_in_whole_blocks() -> None:
    decision = decide(corpus([], [[PAGE, STAMP], [STAMP]]), Policy(max_model_len="fit"))
    assert longest_media(decision) == 8100
    assert decision.engine_args["max_model_len"] == 9136  # 8,100 + 1,024, in blocks of 16
    assert decision.budget.max_model_len == 9136
    assert decision.default_budget.max_model_len == opened().max_model_len


def test_a_context_too_short_for_an_item_forces_it_smaller_and_says_so() -> None:
    read = corpus([], [[PAGE], [STAMP, STAMP]])
    policy = Policy(max_model_len=4096)
    decision = decide(read, policy)
    assert decision.forced == "r.jsonl:1 and its answer would take 9,024 of 4,096 tokens"
    assert some(decision.longest).passes
    assert decision.table.costs[STAMP].tokens == 100
    checks = {check.name: check for check in check_decision(read, {}, decision, policy)}
    assert checks["prompt length"].status == "pass"
    assert checks["detail kept"].status == "warn"
    assert decision.retention()["image"] == Retention(1, 0.75, 0.25, path_of(PAGE))
    assert decision.forced_by == "context"
    assert "--max-model-len" in checks["detail kept"].remedy


def test_each_modality_shrinks_no_more_than_the_context_asks() -> None:
    """Two pages and a clip: once the pages are small, the clip fits whole."""
    clip = VideoShape(32, 30.0, 9.0, 336, 336)
    policy = Policy(max_model_len=6144, count={"image": 2})
    model = opened(knobs=(area_knob("image"), area_knob("video")))
    decision = decide(corpus([PAGE, clip]), policy, model=model)
    assert decision.forced_by == "context"
    assert decision.default_table.costs[clip].tokens == 2304
    assert [decision.table.costs[shape].tokens for shape in (PAGE, clip)] == [1280, 2304]
    assert decision.longest is not None
    assert decision.longest.needed_tokens == 2 * 1280 + 2304 + 1024


def test_few_steps_are_tried_and_one_where_none_helps() -> None:
    """Each takes seconds: it is measured as a whole, and rehearsed."""
    tried: set[int] = set()

    def too_large(decision: Decision, most: int) -> str:
        tried.add(longest_media(decision))
        return "too large" if longest_media(decision) > most else ""

    read = corpus([PAGE, STAMP])
    decide(read, rejects=lambda decision: too_large(decision, 0))
    assert len(tried) == 2
    tried.clear()
    steps = {e.point.max_tokens for e in decide(read).explored}
    for most in sorted(steps)[1:-1]:
        tried.clear()
        found = decide(read, rejects=partial(too_large, most=most))
        assert longest_media(found) == max(step for step in steps if step <= most)
        assert len(tried) <= 2 + math.ceil(math.log2(len(steps)))


@pytest.mark.parametrize("prefer", ["quality", "throughput"])
@few
@given(shapes=st.lists(st.builds(ImageShape, SIDES, SIDES), min_size=1, max_size=8))
def test_no_image_is_downscaled_below_the_floor(prefer, shapes: list[Shape]) -> None:
    floor = 400 * UNIT
    decision = decide(
        corpus(shapes),
        Policy(prefer=prefer, min_image_pixels=floor),
        rejects=lambda decision: "never enough",
    )
    for cost in decision.table.columns_of("image"):
        before = decision.default_table.costs[cost.shape].tokens
        assert isinstance(cost.shape, ImageShape)
        area = cost.shape.width_px * cost.shape.height_px
        assert cost.tokens >= before or area * cost.tokens / before >= floor - 1


def test_a_cap_is_chosen_for_the_frames_that_the_floor_asks_for() -> None:
    """A cap of all frames together downscales more of them: none is, and the check says so."""
    policy, long = Policy(min_video_frames=64), VideoShape(300, 30.0, 10.0, 280, 280)
    cap = area_knob("video")
    read, model = corpus([long]), opened(knobs=(replace(cap, value=32 * cap.value), FRAMES))
    decision = decide(read, policy, model, host=VolumeHost)
    assert decision.engine_args["media_io_kwargs"] == {"video": {"num_frames": 64}}
    assert decision.table.costs[long].tokens == 64 // 2 * 100
    assert "mm_processor_kwargs" in decision.engine_args
    checks = {check.name: check for check in check_decision(read, {}, decision, policy)}
    assert checks["detail kept"].status == "pass"


def test_items_of_an_encoder_decoder_model_take_no_context() -> None:
    model = replace(opened(max_model_len=448, chunks=False), encoder_decoder=True)
    decision = decide(corpus([PAGE]), model=model)
    assert decision.longest is None
    assert decision.forced == ""


def test_a_given_cap_is_not_forced_lower() -> None:
    policy = Policy(max_tokens_per_item=4000)
    decision = decide(corpus([PAGE]), policy, rejects=lambda decision: "never enough")
    assert 2048 < longest_media(decision) <= 4000


def test_coverage_may_be_of_each_modality_by_itself() -> None:
    clip = VideoShape(20, 30.0, 0.7, 280, 280)
    requests: list[Sequence[Shape]] = [*[[STAMP]] * 8, [STAMP] * 4, [clip] * 3]
    counts = decide(corpus([], requests), Policy(coverage={"image": 0.9})).counts
    assert counts["image"].value == 1
    assert "covers 90.0%" in counts["image"].reason
    assert counts["video"].value == 3


def test_utilization_is_written_where_given() -> None:
    assert "gpu_memory_utilization" not in decide(corpus([STAMP])).engine_args
    args = decide(corpus([STAMP]), Policy(gpu_memory_utilization=0.8)).engine_args
    assert args["gpu_memory_utilization"] == 0.8


def test_detail_goes_as_far_above_the_default_as_memory_allows() -> None:
    """The default is 16,384 tokens; half as many again are tried on the way to all 30,000."""
    huge = ImageShape(8400, 2800)
    read, policy = corpus([PAGE, huge]), Policy(prefer="detail", max_model_len=65_536)
    whole = decide(read, policy)
    assert whole.table.costs[huge].tokens == 30_000
    assert whole.budget.encoder_cache_size >= 30_000
    assert (whole.forced, [point.items_shrunk for point in whole.chosen]) == ("", [0])
    (reason,) = (e.reason for e in evidence(whole, opened(), policy) if "longest" in e.setting)
    assert reason.startswith("detail of 1 image, none shrinks; ")
    for most, expected in ((25_000, 24_567), (20_000, 16_133), (10_000, 8_064)):

        def rejects(decision: Decision, most: int = most) -> str:
            return "too large" if decision.table.costs[huge].tokens > most else ""

        found = decide(read, policy, rejects=rejects)
        assert found.table.costs[huge].tokens == pytest.approx(expected, rel=0.02), most
        assert found.forced_by == "memory"
        reasons = [e.reason for e in evidence(found, opened(), policy) if "longest" in e.setting]
        assert len(reasons) == (found.setting != found.default_table.setting)
        assert all("otherwise too large" in reason for reason in reasons)
        (check,) = (c for c in check_decision(read, {}, found, policy) if c.code == "MM025")
        assert check.status == "warn"
        assert found.forced in check.detail
    usual = decide(read, Policy(max_model_len=65_536))
    assert usual.table.costs[huge].tokens == 16_133
    assert least_kept(usual) == {"image": pytest.approx(16_384 / 30_000)}
    assert least_kept(whole) == {"image": 1}


def test_detail_raises_the_cap_of_a_whole_clip() -> None:
    """32 frames have 768 cells each by default, not all 50 × 40."""
    video = replace(area_knob("video"), value=768 * 32 * UNIT)
    clip, policy = VideoShape(300, 30.0, 10.0, 1400, 1120), Policy(prefer="detail")
    read, model = corpus([clip, STAMP]), opened(knobs=(video,))
    usual, found = (decide(read, p, model, host=VolumeHost) for p in (Policy(), policy))
    assert usual.table.costs[clip].tokens <= 16 * 768 < 16 * 2000 == found.table.costs[clip].tokens
    assert found.budget.encoder_cache_size >= 16 * 2000
    (reason,) = (e.reason for e in evidence(found, model, policy) if "longest" in e.setting)
    assert reason.startswith("detail of 1 video; default")
    (check,) = (c for c in check_decision(read, {}, usual, Policy()) if c.code == "MM025")
    assert (check.status, check.names) == ("warn", (path_of(clip),))
    assert check.remedy.startswith(f"--prefer detail sets {2000 * 32 * UNIT:,}: ")


def test_detail_ends_with_the_context() -> None:
    huge = ImageShape(8400, 2800)
    found = decide(corpus([PAGE, huge]), Policy(prefer="detail", max_model_len=28_000))
    assert max(explored.point.max_tokens for explored in found.explored) < 28_000
    assert 16_384 < found.table.costs[huge].tokens < 28_000 - 1024


OF_750 = " to whole items of 750 tokens"
HOLDS = "the encoder cache must hold the largest item, 14750 tokens"


@pytest.mark.parametrize(
    ("cells", "batch", "reason"),
    [
        (590, 14_750, HOLDS),
        (590, 15_000, f"{HOLDS}, rounded up{OF_750}"),
        (40, 2048, "vllm serve's default on this machine (cpu); other machines differ"),
        (40, 2250, f"vLLM's default on this machine, 2048, rounded up{OF_750}"),
        (40, 1500, f"vLLM's default on this machine, 2048, rounded down{OF_750}"),
    ],
)
def test_the_reason_for_a_batch_is_true_of_its_number(cells: int, batch: int, reason: str) -> None:
    """14,750 was once said to be rounded to whole items of 750."""
    found = decide(corpus([ImageShape(cells * 28, 25 * 28)]))
    budget = replace(found.budget, max_tokens_per_item={"image": 750})
    args = {**found.engine_args, "max_num_batched_tokens": batch}
    said = evidence(replace(found, budget=budget, engine_args=args), opened(), Policy())
    assert {e.setting: e.reason for e in said}["max_num_batched_tokens"] == reason
