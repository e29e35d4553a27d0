"""How many large items the encoder cache holds at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.costs import CostTable
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.limits import Residency, residencies
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import ImageShape, Shape, VideoShape
from tests.derive.costed import table_of

PAGE, CLIP = ImageShape(280, 280), VideoShape(8, 8.0, 1.0, 280, 280)


def table(costs: dict[Shape, tuple[int, int]]) -> CostTable:
    """Of each shape its embeds and how many items have it."""
    return table_of(
        DEFAULT,
        {
            shape: ItemCost(shape, count, f"/{shape}", embeds + 2, embeds, 1, 0.0, (), "real")
            for shape, (embeds, count) in costs.items()
        },
    )


def budget(size: int, batched: int) -> Budget:
    return Budget(size, size, {}, {}, {}, None, 0, {}, 10**6, batched, 8)


def only(costs: dict[Shape, tuple[int, int]], size: int, batched: int) -> Residency:
    (found,) = residencies(table(costs), budget(size, batched))
    return found


def test_each_modality_has_its_own_largest() -> None:
    found = list(residencies(table({PAGE: (100, 3), CLIP: (400, 1)}), budget(1000, 1000)))
    assert [(r.modality, r.items, r.steps) for r in found] == [("image", 10, 1), ("video", 2, 1)]
    assert not any(r.blocks for r in found)


def test_large_items_that_take_several_steps_block_one_another() -> None:
    assert only({CLIP: (600, 2)}, 1000, 256).blocks
    assert only({CLIP: (600, 2)}, 1000, 256).steps == 3


def test_one_step_holds_no_second_one_anyway() -> None:
    assert not only({CLIP: (600, 2)}, 1000, 1000).blocks


def test_a_single_large_item_blocks_nothing_and_shares_its_entry_with_itself() -> None:
    smaller = replace(CLIP, width_px=140)
    assert not only({CLIP: (600, 1), smaller: (500, 50)}, 1000, 256).blocks
    assert only({CLIP: (600, 1), smaller: (501, 1)}, 1000, 256).blocks


@given(st.integers(1, 500), st.integers(1, 2000), st.integers(1, 2000))
def test_as_many_are_resident_as_fit(embeds: int, size: int, batched: int) -> None:
    found = only({PAGE: (embeds, 1)}, size, batched)
    assert found.items * embeds <= size < (found.items + 1) * embeds
    assert (found.steps - 1) * batched < embeds + 2 <= found.steps * batched
