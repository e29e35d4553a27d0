from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.costs import CostColumns, CostTable
from mmcalib.derive.counting import (
    SPOTS,
    VllmCount,
    VllmCounts,
    as_counted,
    filled,
    reproduces,
    spots,
)
from mmcalib.domain.shape_columns import Column
from mmcalib.domain.shapes import ImageShape, Shape
from tests.derive.costed import counts_of, sized, table, table_of

SIDES = st.integers(28, 4000)
CORPORA = st.lists(st.tuples(SIDES, SIDES), min_size=SPOTS + 1, max_size=40, unique=True)
CAPS = st.integers(1, 200)


def counts(costs: CostColumns, cap: int = 10**9) -> VllmCounts:
    found: dict[Shape, VllmCount] = {
        c.shape: VllmCount(min(c.embeds, cap), c.sampled) for c in costs
    }
    return counts_of(found)


def changed(found: VllmCounts, costs: CostColumns) -> Column:
    return np.flatnonzero(~as_counted(found, costs))


def measured(default: CostTable, shapes: list[Shape], cap: int, beside: int = 0) -> CostTable:
    """The default's table with these shapes as a processor with this cap would cost them."""
    costs = {s: replace(c, basis="unchanged") for s, c in default.costs.items()}
    for shape in shapes:
        embeds = min(default.costs[shape].embeds, cap)
        costs[shape] = replace(
            default.costs[shape], tokens=embeds + beside, embeds=embeds, process_s=0.1
        )
    return table_of(default.setting, costs)


def without(table: CostTable, shape: Shape) -> CostTable:
    return table_of(table.setting, {s: c for s, c in table.costs.items() if s != shape})


@given(CORPORA, CAPS)
def test_everything_is_as_if_it_had_been_measured(sizes, cap: int) -> None:
    default = sized(sizes)
    every = list(default.costs)
    found = counts(default.of("image"), cap)
    moved = changed(found, default.of("image"))
    if not len(moved):
        return
    looked_at = spots(default.of("image"), moved, found)
    assert len(looked_at) <= SPOTS + 2 * 16
    table_ = filled(measured(default, looked_at, cap), default, found, looked_at)
    assert table_ is not None
    truth = measured(default, every, cap)
    assert [(c.tokens, c.embeds) for c in table_.costs.values()] == [
        (c.tokens, c.embeds) for c in truth.costs.values()
    ]
    bases = {s: c.basis for s, c in table_.costs.items()}
    assert {s for s, basis in bases.items() if basis == "counted"} == {
        default.of("image").shapes[row] for row in moved
    } - set(looked_at)


@given(CORPORA, CAPS)
def test_a_processor_that_does_not_do_what_is_counted_is_found_out(sizes, cap: int) -> None:
    default = sized(sizes)
    found = counts(default.of("image"), cap)
    moved = changed(found, default.of("image"))
    if not len(moved):
        return
    looked_at = spots(default.of("image"), moved, found)
    deaf = measured(default, looked_at, 10**9)
    assert filled(deaf, default, found, looked_at) is None


def test_a_spot_that_is_refused_disproves() -> None:
    default = sized([(280, 280 + 28 * n) for n in range(20)])
    found = counts(default.of("image"), 50)
    looked_at = spots(default.of("image"), np.arange(20), found)
    refused = measured(default, looked_at, 50)
    refused = without(refused, looked_at[0])
    assert filled(refused, default, found, looked_at) is None


def test_tokens_beside_the_embeds_follow_the_level() -> None:
    """Gemma 3's crops: two sizes of embeds, each with words of its own around it."""
    default = sized([(280, 280 + 28 * n) for n in range(20)])
    costs = default.of("image")
    embeds = {c.shape: 256 if c.embeds < 150 else 768 for c in costs}
    found = counts_of({shape: VllmCount(n, ()) for shape, n in embeds.items()})
    looked_at = spots(costs, np.arange(20), found)
    now = dict(measured(default, looked_at, 10**9).costs)
    for shape in looked_at:
        around = 4 if embeds[shape] == 256 else 88
        tokens = embeds[shape] + around
        now[shape] = replace(now[shape], embeds=embeds[shape], tokens=tokens)
    table_ = filled(table_of(default.setting, now), default, found, looked_at)
    assert table_ is not None
    assert {c.tokens for c in table_.of("image")} == {260, 856}
    wide = next(s for s in looked_at if embeds[s] == 768)
    now[wide] = replace(now[wide], tokens=857)
    odd = table_of(default.setting, now)
    assert filled(odd, default, found, looked_at) is None, "one level, two numbers of words"


def test_bytes_and_seconds_are_scaled() -> None:
    default = sized([(280, 280 + 28 * n) for n in range(20)])
    default = table(
        *(replace(c, tensor_bytes=c.embeds * 1000, process_s=1.0) for c in default.of("image"))
    )
    found = counts(default.of("image"), 50)
    looked_at = spots(default.of("image"), np.arange(20), found)
    table_ = filled(measured(default, looked_at, 50), default, found, looked_at)
    assert table_ is not None
    computed = [c for c in table_.of("image") if c.basis == "counted"]
    assert computed
    assert {(c.tensor_bytes, round(c.process_s, 6)) for c in computed} == {(50_000, 0.1)}


def test_what_was_sampled_is_part_of_the_proof() -> None:
    shape = ImageShape(280, 280)
    costs = sized([(280, 280)]).of("image")

    def says(*counted: VllmCount) -> bool:
        return reproduces(counts_of(dict.fromkeys([shape], *counted)), costs)

    assert says(VllmCount(100, ()))
    assert not says(VllmCount(100, (140, 140)))
    assert not says(VllmCount(99, ()))
    assert not reproduces(counts_of({}), costs)
