from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.shapes import ImageShape
from mmcalib.limits.effects import (
    Footprint,
    ItemOutcome,
    compare_footprints,
    list_settings,
    remove_setting,
)
from tests import builders

STAMP = ImageShape(64, 64)
CAP = ("mm_processor_kwargs", "max_pixels")


def budget(**changed: Any) -> Budget:
    limits = {"max_items_per_prompt": {"image": 4}, "max_model_len": 4096, "max_num_seqs": 8}
    return replace(builders.budget(6345, {"image": 1269}, **limits), **changed)


LEAVES = st.integers() | st.text(max_size=3)
NAMES = st.text("abc", min_size=1, max_size=2)
INNER = st.recursive(
    LEAVES, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=6
)
NESTED = st.dictionaries(NAMES, INNER, min_size=1, max_size=3)


@given(NESTED)
def test_leaving_out_every_setting_in_turn_leaves_nothing(kwargs: dict[str, Any]) -> None:
    left: dict[str, Any] = {"mm_processor_kwargs": kwargs, "max_num_seqs": 8}
    for path in list_settings(left):
        before = list_settings(left)
        left = remove_setting(left, path)
        assert list_settings(left) == [other for other in before if other != path]
    assert left == {}


def test_what_moves_is_said_with_both_figures() -> None:
    free = budget(
        encoder_compute_budget=16384,
        encoder_cache_size=16384,
        max_tokens_per_item={"image": 16384, "video": 900},
        profiled_items=1,
    )
    found = compare_footprints(CAP, Footprint(budget()), Footprint(free))
    assert found.has_effect
    assert found.words == (
        "without it: largest image 1,269 → 16,384 tokens; largest video none → 900 tokens; "
        "encoder budget 6,345 → 16,384 tokens"
    )


@pytest.mark.parametrize(
    ("less", "words"),
    [
        (Footprint(items={STAMP: ItemOutcome(9, 80)}), "image of 64×64 4 → 9 tokens"),
        (Footprint(items={STAMP: ItemOutcome(4, 90)}), "image of 64×64 80 → 90 bytes"),
        (Footprint(items={STAMP: ItemOutcome(refusal="no")}), "vLLM rejects image of 64×64: no"),
        (Footprint(refusal="too small"), "vLLM fails to start: too small"),
        (
            Footprint(budget(dummies={"image": Dummy(324, 80, {})})),
            "profiled image 1,269 → 324 tokens",
        ),
    ],
)
def test_each_kind_of_figure_moves(less: Footprint, words: str) -> None:
    built = budget(dummies={"image": Dummy(1269, 80, {})})
    with_ = Footprint(built, "", {STAMP: ItemOutcome(4, 80)})
    assert compare_footprints(CAP, with_, less).words == f"without it: {words}"


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        (CAP, "idle"),
        (("limit_mm_per_prompt", "image", "width"), "idle"),
        (("limit_mm_per_prompt", "image", "count"), "stated"),
        (("max_model_len",), "stated"),
        (("gpu_memory_utilization",), "not shown"),
        (("mm_processor_kwargs", "do_normalize"), "not shown"),
    ],
)
def test_where_nothing_moves_it_depends_on_the_setting(path: Any, outcome: str) -> None:
    same = Footprint(budget(), items={STAMP: ItemOutcome(4, 80)})
    assert compare_footprints(path, same, same).outcome == outcome


def test_an_effect_concerns_what_stands_and_falls_with_it() -> None:
    same = Footprint(budget())
    size = compare_footprints(("mm_processor_kwargs", "images_kwargs", "size"), same, same)
    assert size.concerns("mm_processor_kwargs.images_kwargs.size.shortest_edge")
    assert not size.concerns("mm_processor_kwargs.images_kwargs.sizes")
    count = compare_footprints(("limit_mm_per_prompt", "image", "count"), same, same)
    assert count.concerns("limit_mm_per_prompt.image")
    assert not count.concerns("limit_mm_per_prompt.image.width")
