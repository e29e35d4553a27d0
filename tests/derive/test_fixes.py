"""Fixes and the search for the cheapest combination, on toys that stand for vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.fix_search import SearchResult, find_cheapest
from mmcalib.derive.fixes import (
    COSTS,
    HOST_ONLY,
    KEEPABLE,
    Fix,
    Goal,
    Outcome,
    changed_args,
    highest_levels,
    parse_constraints,
    parse_goal,
    propose_fixes,
)
from mmcalib.domain import knobs
from mmcalib.errors import UsageError
from tests.workflows import rehearsals

PLENTY = 10_000
AREA = knobs.AreaCap(
    modality="image",
    path=("images_kwargs", "size", "longest_edge"),
    value=12_845_056,
    token_px=784,
    least_name="shortest_edge",
    least_px=3_136,
)
TWO = replace(
    rehearsals.BUDGET,
    max_tokens_per_item={"image": 16_384, "video": 114_688},
    max_model_len=128_000,
    max_num_batched_tokens=2_048,
)
FACTS = replace(
    rehearsals.FACTS,
    budget=TWO,
    knobs=(AREA, knobs.FrameSampling(path=("video", "fps"), value=2, steps=(0.5, 1, 2))),
    attention_heads=28,
)


def fix(number: int, cost: int = 0, severity: int = 0, knob: str = "", level: int = 0) -> Fix:
    name = f"fix {number}"
    return Fix(name, knob or name, {name: 1}, COSTS[cost], "", level, severity, level == 0)


@st.composite
def toys(draw: st.DrawFn) -> tuple[list[Fix], Callable[[tuple[Fix, ...]], Outcome]]:
    """Fixes of some knobs with levels, and a goal that needs any one of some sets of levels."""
    fixes: list[Fix] = []
    for knob in range(draw(st.integers(1, 6))):
        cost = draw(st.integers(0, len(COSTS) - 1))
        for level in range(draw(st.integers(1, 3))):
            fixes.append(fix(len(fixes), cost, level, f"knob {knob}", level))
    needs = draw(
        st.lists(st.lists(st.sampled_from(fixes), min_size=1, max_size=4), min_size=1, max_size=3)
    )

    def lacking(chosen: tuple[Fix, ...]) -> int:
        levels = {f.knob: f.level for f in highest_levels(chosen)}
        return min(sum(levels.get(f.knob, -1) < f.level for f in need) for need in needs)

    return fixes, lambda chosen: Outcome(lacking(chosen) == 0, lacking(chosen))


def search(toy, most: int = PLENTY) -> tuple[SearchResult, list[tuple[Fix, ...]]]:
    fixes, evaluate = toy
    asked: list[tuple[Fix, ...]] = []

    def watched(chosen: tuple[Fix, ...]) -> Outcome:
        asked.append(chosen)
        return evaluate(chosen)

    return find_cheapest(fixes, evaluate(()), watched, most), asked


@given(toys())
def test_it_reaches_what_all_together_reach_and_nothing_can_be_left_out(toy) -> None:
    _, evaluate = toy
    found, asked = search(toy)
    assert found.reached
    assert found.proven
    assert evaluate(found.best).reached
    for one in found.best:
        assert not evaluate(tuple(f for f in found.best if f is not one)).reached
    assert len(asked) == len(set(asked))


@given(toys())
def test_no_other_combination_has_a_cheaper_dearest_fix(toy) -> None:
    fixes, evaluate = toy
    found, _ = search(toy)
    price = max((COSTS.index(f.cost), f.severity) for f in found.best)
    cheaper = tuple(f for f in fixes if (COSTS.index(f.cost), f.severity) < price)
    assert not evaluate(cheaper).reached


@given(toys(), st.integers(0, 12))
def test_it_never_asks_more_than_it_may(toy, most: int) -> None:
    found, asked = search(toy, most)
    assert len(asked) <= most
    if found.reached:
        assert toy[1](found.best).reached
    else:
        assert not found.proven


@given(toys())
def test_what_else_reaches_it_spares_a_cost_of_the_best(toy) -> None:
    fixes, evaluate = toy
    found = find_cheapest(fixes, evaluate(()), evaluate, PLENTY, PLENTY)
    paid = {f.cost for f in found.best}
    for other in found.others:
        assert evaluate(other).reached
        assert paid - {f.cost for f in other}
    assert len({found.best, *found.others}) == 1 + len(found.others)
    for cost in paid - {COSTS[0]}:
        without = tuple(f for f in fixes if f.cost != cost)
        spared = any(all(f.cost != cost for f in other) for other in found.others)
        assert spared == evaluate(without).reached


def test_what_is_kept_no_fix_changes_and_what_has_a_least_goes_down_to_it() -> None:
    every = {name for f in propose_fixes({}, FACTS, Goal()) for name in f.changes}
    assert every <= set(KEEPABLE)
    kept = parse_constraints(["--max-model-len=20k", "kv_cache_dtype", "max_num_seqs=32"])
    fixes = propose_fixes({}, FACTS, Goal(), kept)
    assert not any("kv_cache_dtype" in f.changes for f in fixes)
    lengths = [f.changes["max_model_len"] for f in fixes if f.knob == "max_model_len"]
    assert lengths == [32_768, 20_000]
    assert [f.changes["max_num_seqs"] for f in fixes if f.knob == "max_num_seqs"] == [64, 32]
    assert all(kept.allows(f) for f in fixes)
    whole = propose_fixes({}, FACTS, Goal(), parse_constraints(["max_model_len"]))
    assert not any("max_model_len" in f.changes for f in whole)


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
        parse_constraints([text])


def test_where_nothing_reaches_the_best_is_named() -> None:
    toy = ([fix(1), fix(2, cost=3)], lambda chosen: Outcome(False, 10 - len(chosen)))
    found, _ = search(toy)
    assert [f.name for f in found.best] == ["fix 1", "fix 2"]
    assert not found.reached
    assert found.proven


def test_what_vllm_refuses_is_told_and_does_not_spoil_the_rest() -> None:
    fixes = [
        fix(1),
        fix(2, cost=1),
        fix(3, cost=5, knob="ranks"),
        fix(4, cost=5, severity=1, knob="ranks", level=1),
        fix(5, cost=4),
    ]

    def evaluate(chosen: tuple[Fix, ...]) -> Outcome:
        names = {f.name for f in chosen}
        if names & {"fix 4", "fix 5"}:
            return Outcome(False, 0, "no")
        return Outcome({"fix 1", "fix 3"} <= names, 2 - len(names & {"fix 1", "fix 3"}))

    found, _ = search((fixes, evaluate))
    assert [f.name for f in found.best] == ["fix 1", "fix 3"]


def test_what_does_not_combine_is_never_in_a_combination() -> None:
    hint = replace(fix(1), combines=False)
    found, _ = search(([hint, fix(2, cost=5)], lambda chosen: Outcome(bool(chosen), 1)))
    assert [f.name for f in found.best] == ["fix 2"]


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


def test_changes_are_merged_and_of_two_limits_the_lower_holds() -> None:
    def of(name: str, changes: dict[str, object]) -> Fix:
        return Fix(name, name, changes, "nothing", "")

    given_args = {
        "limit_mm_per_prompt": {"image": {"count": 4, "width": 512}, "audio": 2},
        "mm_processor_kwargs": {"videos_kwargs": {"size": {"longest_edge": 7}}},
        "max_model_len": 9,
    }
    fixes = [
        of("none", {"limit_mm_per_prompt": {"video": 0}}),
        of("one", {"limit_mm_per_prompt": {"image": 1, "video": 1}}),
        of("cap", {"mm_processor_kwargs": {"images_kwargs": {"size": {"longest_edge": 8}}}}),
    ]
    assert changed_args(given_args, fixes) == {
        "limit_mm_per_prompt": {"image": {"count": 1, "width": 512}, "audio": 2, "video": 0},
        "mm_processor_kwargs": {
            "videos_kwargs": {"size": {"longest_edge": 7}},
            "images_kwargs": {"size": {"longest_edge": 8}},
        },
    }


def test_the_number_of_sequences_that_vllm_names_is_the_mildest() -> None:
    budget = replace(FACTS.budget, max_num_seqs=1_024)
    facts = replace(FACTS, budget=budget, most_sequences=750)
    fixes = [f for f in propose_fixes({}, facts, Goal()) if f.knob == "max_num_seqs"]
    assert [(f.changes["max_num_seqs"], f.alone) for f in fixes] == [
        *((750, True), (64, False), (16, False)),
    ]


def test_every_fix_of_the_guides_is_there() -> None:
    fixes = propose_fixes({}, FACTS, Goal())
    changes = {name for one in fixes for name in one.changes}
    assert changes >= {
        *("tensor_parallel_size", "quantization", "max_model_len", "max_num_seqs"),
        *("max_num_batched_tokens", "max_cudagraph_capture_size", "enforce_eager"),
        *("gpu_memory_utilization", "kv_cache_dtype", "cpu_offload_gb", "mm_processor_cache_gb"),
        *("limit_mm_per_prompt", "mm_processor_kwargs", "language_model_only"),
    }
    assert "skip_mm_profiling" not in changes
    assert {f.name: f.changes for f in fixes if f.untried == HOST_ONLY} == {
        "mm_processor_cache_gb": {"mm_processor_cache_gb": 0},
        "VLLM_CPU_KVCACHE_SPACE": {},
    }
    assert not any(f.combines for f in fixes if f.knob == "size hint")
    assert len({f.name for f in fixes}) == len(fixes)
    # With the configuration as it is, and some left to combine them.
    assert sum(f.alone and not f.untried for f in fixes) <= 18


IMAGES = ("images_kwargs", "size", "longest_edge")
# As the child finds them: Idefics3-8B, SmolVLM2-2.2B, Gemma 3 with pan-and-scan off and on,
# InternVL2-2B, Qwen2.5-VL-3B.
IDEFICS3 = knobs.EdgeCap(path=IMAGES, value=1456, steps=(364, 728, 1092, 1456))
SMOLVLM2 = knobs.EdgeCap(path=IMAGES, value=1536, steps=(384, 768, 1152, 1536))
CROPS = ("images_kwargs", "pan_and_scan_max_num_crops")
GEMMA3 = knobs.CropCap(path=CROPS, value=0, steps=(0, 2, 3, 4), switch="do_pan_and_scan")
GEMMA3_ON = replace(GEMMA3, value=4)
INTERNVL2 = knobs.TileCap(path=("images_kwargs", "max_dynamic_patch"), value=12)
CLIP = knobs.AreaCap(
    modality="video",
    path=("videos_kwargs", "size", "longest_edge"),
    value=602_112,
    token_px=784,
    least_name="shortest_edge",
    least_px=100_352,
)
FPS = knobs.FrameSampling(path=("video", "fps"), value=2, steps=(0.5, 1, 2))
GEMMA4 = knobs.TokenCap(
    path=("images_kwargs", "max_soft_tokens"), value=280, steps=(70, 140, 280, 560, 1120)
)


def caps(knob: knobs.Knob) -> list[Fix]:
    """The fixes of one knob, mildest first."""
    facts = replace(FACTS, knobs=(knob,))
    return [f for f in propose_fixes({}, facts, Goal()) if f.knob == knob.name]


def said(knob: knobs.Knob) -> dict[Any, str]:
    """The value of each fix, and its price."""
    found = {}
    for fix in caps(knob):
        value: Any = fix.changes["mm_processor_kwargs"]
        for key in knob.path:
            value = value[key]
        found[value] = fix.price
    return found


@pytest.mark.parametrize(
    ("knob", "values"),
    [(IDEFICS3, (728, 364)), (SMOLVLM2, (768, 384))],
    ids=("Idefics3", "SmolVLM2"),
)
def test_an_edge_is_in_pixels(knob: knobs.Knob, values: tuple[int, int]) -> None:
    """Finding §8 of the server conformance work: "cut into at most 728 tiles, not 1456"."""
    assert said(knob) == {
        value: f"images shrink to {value:,} pixels at their longer edge, not {knob.value:,}"
        for value in values
    }
    assert [fix.level for fix in caps(knob)] == [0, 1]


def test_one_crop_is_the_image_again() -> None:
    """Finding §8 of the server conformance work: Gemma 3 was proposed `max_num_crops: 1`."""
    assert caps(GEMMA3) == []
    assert said(GEMMA3_ON) == {
        2: "narrow images have at most 2 crops besides the whole, not 4",
        0: "narrow images have no crops besides the whole",
    }
    (_, off) = caps(GEMMA3_ON)
    assert off.changes["mm_processor_kwargs"] == {
        "images_kwargs": {"pan_and_scan_max_num_crops": 0, "do_pan_and_scan": False}
    }
    assert list(said(replace(GEMMA3_ON, value=2, steps=(0, 2)))) == [0]


def test_tiles_are_tiles() -> None:
    assert said(INTERNVL2) == {
        6: "an image is cut into at most 6 tiles, not 12",
        3: "an image is cut into at most 3 tiles, not 12",
    }


def test_a_cap_that_is_set_is_only_made_lower() -> None:
    facts = replace(FACTS, knobs=(AREA,))
    size = {"longest_edge": 2_000_000, "shortest_edge": 3_136}
    args = {"mm_processor_kwargs": {"images_kwargs": {"size": size}}}
    found = [f for f in propose_fixes(args, facts, Goal()) if f.knob == AREA.name]
    assert [f.name for f in found] == ["images_kwargs.size.longest_edge=1003520"]


def test_areas_are_megapixels_of_images_and_shares_of_videos() -> None:
    assert said(AREA) == {
        3_211_264: "images above 3.2 megapixels shrink",
        1_003_520: "images above 1.0 megapixels shrink",
    }
    assert said(CLIP) == {150_528: "videos keep 1 pixel in 4 of today's maximum"}


def test_what_the_loader_keeps_is_no_fix() -> None:
    assert caps(FPS) == []


def test_soft_tokens_are_tokens() -> None:
    assert said(GEMMA4) == {
        140: "an image takes at most 140 tokens, not 280",
        70: "an image takes at most 70 tokens, not 280",
    }


def test_what_is_set_already_is_not_proposed() -> None:
    args = {
        "enforce_eager": True,
        "gpu_memory_utilization": 0.95,
        "kv_cache_dtype": "fp8",
        "quantization": "fp8",
        "limit_mm_per_prompt": {"image": 1, "video": 1},
    }
    facts = replace(
        FACTS,
        memory=rehearsals.rehearsed(tensor_parallel_size=8),
        budget=replace(TWO, max_model_len=4_096, max_num_seqs=16),
    )
    fixes = {f.name: f for f in propose_fixes(args, facts, Goal())}
    assert not {name for name in fixes if name.startswith(("max_model_len", "max_num_seqs"))}
    assert not fixes.keys() & {*args, "tensor_parallel_size=2", "one item of each modality"}
    assert not fixes["no video"].combines
