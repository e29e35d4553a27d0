"""Fixes in the order of levers, and the search for the least of them, on toys for vLLM."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain import knobs
from mmcalib.errors import UsageError
from mmcalib.limits.policy import COSTS
from mmcalib.remedies import memory as catalogue
from mmcalib.remedies.memory import (
    LAST_LEVERS,
    LEVERS,
    PRICES,
    Goal,
    Outcome,
    Remedy,
    Search,
    SearchResult,
    Situation,
    allows,
    changed_args,
    parse_goal,
    parse_kept,
    with_remedy,
)
from tests.builders import area_cap
from tests.workflows import rehearsals

AREA = area_cap()
TWO = replace(
    rehearsals.BUDGET,
    max_tokens_per_item={"image": 16_384, "video": 114_688},
    max_model_len=128_000,
    max_num_batched_tokens=16_384,
)
FRAMES = knobs.FrameSampling(path=("video", "fps"), value=2, steps=(0.5, 1, 2))


def situation(args: dict[str, Any] | None = None, **changes: Any) -> Situation:
    memory = changes.pop("memory", rehearsals.rehearsed(budget=TWO))
    now = Situation(args or {}, memory, TWO, Goal(), knobs=(AREA, FRAMES))
    return replace(now, **changes)


def propose(now: Situation) -> list[Remedy]:
    found = [fix for lever in (*sum(LEVERS, ()), *LAST_LEVERS[1:]) for fix in lever(now)]
    return [fix for fix in found if allows(now.kept, fix)]


def proposed(name: str, now: Situation) -> list[Any]:
    return [fix.changes[name] for fix in propose(now) if fix.knob == name]


def fix(number: int, cost: int = 0, knob: str = "", value: int = 1) -> Remedy:
    name = f"fix {number}"
    return Remedy(knob or name, {knob or name: value}, COSTS[cost], "")


Toy = tuple[list[list[Remedy]], Callable[[tuple[Remedy, ...]], Outcome]]


@st.composite
def toys(draw: st.DrawFn) -> Toy:
    """Levers with levels, each of which gains as many bytes, and a goal of some."""
    levers: list[list[Remedy]] = []
    for knob in range(draw(st.integers(1, 6))):
        levels = sorted(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True)))
        levers.append([fix(knob, knob % len(COSTS), f"knob {knob}", level) for level in levels])
    need = draw(st.integers(1, 20))

    def outcome(chosen: tuple[Remedy, ...]) -> Outcome:
        gained = sum(int(v) for fix in chosen for v in fix.changes.values())
        return Outcome(gained >= need, max(0, need - gained))

    return levers, outcome


def search(toy: Toy, most: int = 10_000) -> tuple[SearchResult, list[tuple[Remedy, ...]]]:
    levers, evaluate = toy
    asked: list[tuple[Remedy, ...]] = []

    def watched(chosen: tuple[Remedy, ...]) -> Outcome:
        asked.append(chosen)
        return evaluate(chosen)

    def lever(fixes: list[Remedy]) -> Callable[[Situation], Iterator[Remedy]]:
        return lambda now: iter(fixes)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(catalogue, "LEVERS", tuple((lever(fixes),) for fixes in levers))
        patched.setattr(catalogue, "LAST_LEVERS", ())
        found = Search(watched, lambda *_: situation(), lambda _: (), most)
        return found.run(evaluate(())), asked


@given(toys())
def test_it_reaches_what_all_together_reach_and_nothing_can_be_left_out(toy: Toy) -> None:
    levers, evaluate = toy
    found, asked = search(toy)
    assert found.outcome.reached == evaluate(tuple(fixes[-1] for fixes in levers)).reached
    assert found.proven
    assert len(asked) == len(set(asked))
    for one in found.best if found.outcome.reached else ():
        assert not evaluate(tuple(f for f in found.best if f is not one)).reached


@given(toys(), st.integers(1, 12))
def test_it_never_asks_more_than_it_may(toy: Toy, most: int) -> None:
    found, asked = search(toy, most)
    assert len(asked) <= most
    assert found.outcome.reached == toy[1](found.best).reached


def test_no_later_lever_is_pulled_where_earlier_ones_suffice() -> None:
    early, late = fix(1), fix(2, cost=5)
    toy = ([[early], [late]], lambda chosen: Outcome(early in chosen, 0 if early in chosen else 5))
    found, asked = search(toy)
    assert found.best == (early,)
    assert asked == [(early,)]


def test_nothing_is_paid_that_does_not_suffice() -> None:
    """Speed alone gains too little, and a shorter context alone is enough."""
    free, speed, context = fix(1), fix(2, cost=2), fix(3, cost=3)
    gains = {free: 1, speed: 2, context: 9}

    def evaluate(chosen: tuple[Remedy, ...]) -> Outcome:
        lacking = max(0, 9 - sum(map(gains.__getitem__, chosen)))
        return Outcome(lacking == 0, lacking)

    found, _ = search(([[free], [speed], [context]], evaluate))
    assert found.best == (context,)


def test_what_vllm_refuses_is_passed_over() -> None:
    refused, good = fix(1), fix(2)

    def evaluate(chosen: tuple[Remedy, ...]) -> Outcome:
        if refused in chosen:
            return Outcome(False, 0, "no")
        return Outcome(good in chosen, 3)

    found, _ = search(([[refused], [good]], evaluate))
    assert found.best == (good,)
    assert dict(found.tried)[(refused,)].refusal == "no"


def test_what_starts_without_room_for_its_steps_gets_room() -> None:
    room = fix(9)
    outcomes = {(): Outcome(False, 5, starts=True), (room,): Outcome(True, 0)}
    found = Search(outcomes.__getitem__, lambda *_: None, lambda _: [room], 9)
    assert found.run(outcomes[()]).best == (room,)


def test_the_order_of_levers_is_the_one_of_run() -> None:
    """The order: what nobody sends, free memory, batch, context, detail, hardware."""
    assert list(dict.fromkeys(name for one in propose(situation()) for name in one.changes)) == [
        *("limit_mm_per_prompt", "gpu_memory_utilization", "max_num_batched_tokens"),
        *("max_num_seqs", "max_cudagraph_capture_size", "enforce_eager", "max_model_len"),
        *("kv_cache_dtype", "mm_processor_kwargs", "tensor_parallel_size"),
    ]
    costs = [COSTS.index(one.cost) for one in propose(situation())]
    assert costs == sorted(costs)


def test_a_modality_that_nobody_listed_goes_first_and_a_listed_one_stays() -> None:
    for limits, first in (
        (None, {"video": 0}),
        ({"image": 4}, {"video": 0}),
        ({"video": 1}, {"image": 0}),
    ):
        now = situation({"limit_mm_per_prompt": limits} if limits else {})
        one = propose(now)[0]
        assert (one.changes, one.cost) == ({"limit_mm_per_prompt": first}, "nothing")
    listed = situation({"limit_mm_per_prompt": {"image": 1, "video": 1}})
    one_left = replace(TWO, max_tokens_per_item={"image": 16_384})
    main = situation({"limit_mm_per_prompt": {"video": 0}}, budget=one_left)
    for now in (listed, main):
        assert "limit_mm_per_prompt" not in {name for one in propose(now) for name in one.changes}


def test_no_context_is_below_the_largest_image_and_its_answer() -> None:
    assert proposed("max_model_len", situation()) == [65_536, 32_768]
    said = rehearsals.rehearsed(problem="the estimated maximum model length is 50512. Try")
    assert proposed("max_model_len", situation(memory=said)) == [48_128]


def test_the_utilization_is_the_least_that_may_suffice_then_the_most() -> None:
    """22 GiB, of which 20 are asked for."""
    args = {"gpu_memory_utilization": 0.9}
    memory = rehearsals.rehearsed(budget=TWO, requested_bytes=round(0.9 * 22 * 2**30))
    now = situation(args, memory=memory, lacking_bytes=2**28)
    assert proposed("gpu_memory_utilization", now) == [0.93, 0.95]
    tight = situation({"gpu_memory_utilization": 0.9}, memory=replace(memory, free_bytes=0))
    assert not any("-" in f.price for f in propose(tight) if f.knob == "gpu_memory_utilization")


def test_vllms_own_slack_stays_free_and_a_kv_cache_of_given_bytes_needs_no_share() -> None:
    for free, size, shares in ((21.1, 0, [0.95]), (21, 0, [0.94]), (21.1, 9, [])):
        memory = rehearsals.rehearsed(budget=TWO, free_bytes=round(free * 2**30))
        now = situation({"kv_cache_memory_bytes": size}, memory=memory)
        assert proposed("gpu_memory_utilization", now) == shares


def test_the_batch_is_the_most_that_may_suffice_then_the_usual_one() -> None:
    now = situation(budget=replace(TWO, max_num_batched_tokens=65_536), lacking_bytes=2**29)
    assert proposed("max_num_batched_tokens", now) == [32_768, 2_048]


def test_a_size_hint_can_be_dropped() -> None:
    limits = {"image": {"count": 2, "width": 512, "height": 512}, "video": 0}
    (one,) = catalogue.drop_hints({"limit_mm_per_prompt": limits})
    found = changed_args({"limit_mm_per_prompt": limits}, [one])
    assert found == {"limit_mm_per_prompt": {"image": 2, "video": 0}}


def test_a_fix_replaces_those_of_its_arguments() -> None:
    seqs, both = fix(1, knob="max_num_seqs"), Remedy("reserve", {"max_num_seqs": 4}, "speed", "")
    assert with_remedy((seqs,), both) == (both,)


def test_what_is_kept_no_fix_changes_and_what_has_a_least_goes_down_to_it() -> None:
    assert {name for f in propose(situation()) for name in f.changes} <= set(PRICES)
    kept = situation(kept=parse_kept(["--max-model-len=20k", "kv_cache_dtype", "max_num_seqs=32"]))
    fixes = propose(kept)
    assert not any("kv_cache_dtype" in f.changes for f in fixes)
    assert proposed("max_model_len", kept) == [65_536, 32_768, 20_000]
    assert proposed("max_num_seqs", kept) == [64, 32]
    whole = propose(situation(kept=parse_kept(["max_model_len"])))
    assert not any("max_model_len" in f.changes for f in whole)
    assert allows({}, fixes[0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_modellen", "no fix changes --max-modellen"),
        ("max_model_len=", "invalid value"),
        ("max_model_len=0", "invalid value"),
        ("max_model_len=lots", "invalid value"),
        ("kv_cache_dtype=fp8", "invalid value"),
    ],
)
def test_what_cannot_be_kept_is_said(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_kept([text])


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("fits", Goal()),
        ("concurrency>=16", Goal("concurrency", 16)),
        (" kv_tokens >= 200k ", Goal("kv_tokens", 200_000)),
        ("kv_tokens>=32K", Goal("kv_tokens", 32_768)),
    ],
)
def test_goals_are_read(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal
    assert parse_goal(str(goal)) == goal


@pytest.mark.parametrize("text", ["", "fast", "concurrency", "concurrency>=0", "kv_tokens>=many"])
def test_other_goals_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a goal"):
        parse_goal(text)


def test_changes_are_merged_into_what_is_set() -> None:
    def of(name: str, changes: dict[str, object]) -> Remedy:
        return Remedy(name, changes, "nothing", "")

    given_args = {
        "limit_mm_per_prompt": {"image": {"count": 4, "width": 512}, "audio": 2},
        "mm_processor_kwargs": {"videos_kwargs": {"size": {"longest_edge": 7}}},
        "max_model_len": 9,
    }
    fixes = [
        of("none", {"limit_mm_per_prompt": {"video": 0}}),
        of("one", {"limit_mm_per_prompt": {"image": 1}}),
        of("cap", {"mm_processor_kwargs": {"images_kwargs": {"size": {"longest_edge": 8}}}}),
    ]
    assert changed_args(given_args, fixes) == {
        "limit_mm_per_prompt": {"image": 1, "audio": 2, "video": 0},
        "mm_processor_kwargs": {
            "videos_kwargs": {"size": {"longest_edge": 7}},
            "images_kwargs": {"size": {"longest_edge": 8}},
        },
    }


def test_the_number_of_sequences_that_vllm_names_is_the_mildest() -> None:
    said = rehearsals.rehearsed(problem="exceeds available Mamba cache blocks (774). Please")
    now = situation(memory=said, budget=replace(TWO, max_num_seqs=1_024))
    assert proposed("max_num_seqs", now) == [750, 64, 16]


IMAGES = ("images_kwargs", "size", "longest_edge")
# As the child finds them: Idefics3-8B, SmolVLM2-2.2B, Gemma 3 with pan-and-scan off and on,
# InternVL2-2B, Qwen2.5-VL-3B.
IDEFICS3 = knobs.EdgeCap(path=IMAGES, value=1456, steps=(364, 728, 1092, 1456))
SMOLVLM2 = knobs.EdgeCap(path=IMAGES, value=1536, steps=(384, 768, 1152, 1536))
CROPS = ("images_kwargs", "pan_and_scan_max_num_crops")
GEMMA3 = knobs.CropCap(path=CROPS, value=0, steps=(0, 2, 3, 4), switch="do_pan_and_scan")
GEMMA3_ON = replace(GEMMA3, value=4)
INTERNVL2 = knobs.TileCap(path=("images_kwargs", "max_dynamic_patch"), value=12)
CLIP = area_cap("video", 768, 128)
GEMMA4 = knobs.TokenCap(
    path=("images_kwargs", "max_soft_tokens"), value=280, steps=(70, 140, 280, 560, 1120)
)


def caps(knob: knobs.Knob) -> list[Remedy]:
    """The fixes of one knob, mildest first."""
    return [f for f in propose(situation(knobs=(knob,))) if f.knob == knob.name]


def said(knob: knobs.Knob) -> dict[Any, str]:
    """The value of each fix, and its price."""
    found = {}
    for fix in caps(knob):
        value: Any = fix.changes["mm_processor_kwargs"]
        for key in knob.path:
            value = value[key]
        found[value] = fix.price
    return found


EDGE = "images shrink to {:,} pixels at their longer edge, not {:,}"


@pytest.mark.parametrize(
    ("knob", "prices"),
    [
        # An edge of 728 is no number of tiles.
        (IDEFICS3, {728: EDGE.format(728, 1456), 364: EDGE.format(364, 1456)}),
        (SMOLVLM2, {768: EDGE.format(768, 1536), 384: EDGE.format(384, 1536)}),
        (INTERNVL2, {n: f"an image is cut into at most {n} tiles, not 12" for n in (6, 3)}),
        (GEMMA4, {n: f"an image takes at most {n} tokens, not 280" for n in (140, 70)}),
        (
            AREA,
            {
                3_211_264: "images above 3.2 megapixels shrink",
                1_003_520: "images above 1.0 megapixels shrink",
            },
        ),
        (CLIP, {150_528: "videos keep 1 pixel in 4 of today's maximum"}),
        # What the loader keeps is no fix.
        (FRAMES, {}),
    ],
    ids=["edge of Idefics3", "of SmolVLM2", "tiles", "tokens", "area", "clip", "frames"],
)
def test_a_cap_has_its_price_in_its_own_unit(knob: knobs.Knob, prices: dict[int, str]) -> None:
    assert said(knob) == prices


def test_one_crop_is_the_image_again() -> None:
    """`max_num_crops: 1` is no remedy for Gemma 3."""
    assert caps(GEMMA3) == []
    assert said(GEMMA3_ON) == {
        2: "narrow images have at most 2 crops besides the whole, not 4",
        0: "narrow images have no crops besides the whole",
    }
    (_, off) = caps(GEMMA3_ON)
    switched = {"pan_and_scan_max_num_crops": 0, "do_pan_and_scan": False}
    assert off.changes["mm_processor_kwargs"] == {"images_kwargs": switched}
    assert list(said(replace(GEMMA3_ON, value=2, steps=(0, 2)))) == [0]


def test_a_cap_that_is_set_is_only_made_lower() -> None:
    size = {"longest_edge": 2_000_000, "shortest_edge": 3_136}
    args = {"mm_processor_kwargs": {"images_kwargs": {"size": size}}}
    found = [f for f in propose(situation(args)) if f.knob == AREA.name]
    edges = [f.changes["mm_processor_kwargs"]["images_kwargs"]["size"] for f in found]
    assert [edge["longest_edge"] for edge in edges] == [1_003_520]


def test_what_is_set_already_is_not_proposed() -> None:
    limits = {"limit_mm_per_prompt": {"image": 1, "video": 1}, "quantization": "fp8"}
    args = {"enforce_eager": True, "gpu_memory_utilization": 0.95, "kv_cache_dtype": "fp8"}
    least = replace(TWO, max_model_len=4_096, max_num_seqs=16)
    memory = rehearsals.rehearsed(tensor_parallel_size=8)
    now = situation({**args, **limits}, memory=memory, budget=least)
    changed = {name for one in propose(now) for name in one.changes}
    assert changed == {"max_num_batched_tokens", "mm_processor_kwargs"}
