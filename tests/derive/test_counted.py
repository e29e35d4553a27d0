from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.costs import CostTable, ItemCost
from mmcalib.derive.counted import SPOTS, VllmCount, changed, filled, reproduces, spots
from mmcalib.domain.shapes import ImageShape, Shape
from tests.derive.costed import sized, table

SIDES = st.integers(28, 4000)
CORPORA = st.lists(st.tuples(SIDES, SIDES), min_size=SPOTS + 1, max_size=40, unique=True)
CAPS = st.integers(1, 200)


def counts(costs: list[ItemCost], cap: int = 10**9) -> dict[Shape, VllmCount]:
    return {c.shape: VllmCount(min(c.embeds, cap), c.sampled) for c in costs}


def measured(default: CostTable, shapes: list[Shape], cap: int, beside: int = 0) -> CostTable:
    """The default's table with these shapes as a processor with this cap would cost them."""
    costs = {s: replace(c, basis="unchanged") for s, c in default.costs.items()}
    for shape in shapes:
        embeds = min(default.costs[shape].embeds, cap)
        costs[shape] = replace(
            default.costs[shape], tokens=embeds + beside, embeds=embeds, process_s=0.1
        )
    return replace(default, costs=costs)


@given(CORPORA, CAPS)
def test_everything_is_as_if_it_had_been_measured(sizes, cap: int) -> None:
    default = sized(sizes)
    every = list(default.costs)
    found = counts(default.of("image"), cap)
    moved = changed(found, default.of("image"))
    if not moved:
        return
    looked_at = spots(moved, found)
    assert len(looked_at) <= SPOTS + 2 * 16
    table_ = filled(measured(default, looked_at, cap), default, found, looked_at)
    assert table_ is not None
    truth = measured(default, every, cap)
    assert [(c.tokens, c.embeds) for c in table_.costs.values()] == [
        (c.tokens, c.embeds) for c in truth.costs.values()
    ]
    bases = {s: c.basis for s, c in table_.costs.items()}
    assert {s for s, basis in bases.items() if basis == "counted"} == {
        c.shape for c in moved
    } - set(looked_at)


@given(CORPORA, CAPS)
def test_a_processor_that_does_not_do_what_is_counted_is_found_out(sizes, cap: int) -> None:
    default = sized(sizes)
    found = counts(default.of("image"), cap)
    moved = changed(found, default.of("image"))
    if not moved:
        return
    looked_at = spots(moved, found)
    deaf = measured(default, looked_at, 10**9)
    assert filled(deaf, default, found, looked_at) is None


def test_a_spot_that_is_refused_disproves() -> None:
    default = sized([(280, 280 + 28 * n) for n in range(20)])
    found = counts(default.of("image"), 50)
    looked_at = spots(default.of("image"), found)
    refused = measured(default, looked_at, 50)
    del refused.costs[looked_at[0]]
    assert filled(refused, default, found, looked_at) is None


def test_tokens_beside_the_embeds_follow_the_level() -> None:
    """Gemma 3's crops: two sizes of embeds, each with words of its own around it."""
    default = sized([(280, 280 + 28 * n) for n in range(20)])
    costs = default.of("image")
    found = {c.shape: VllmCount(256 if c.embeds < 150 else 768, ()) for c in costs}
    looked_at = spots(costs, found)
    now = measured(default, looked_at, 10**9)
    for shape in looked_at:
        embeds = found[shape].embeds
        around = 4 if embeds == 256 else 88
        now.costs[shape] = replace(now.costs[shape], embeds=embeds, tokens=embeds + around)
    table_ = filled(now, default, found, looked_at)
    assert table_ is not None
    assert {c.tokens for c in table_.of("image")} == {260, 856}
    wide = next(s for s in looked_at if found[s].embeds == 768)
    now.costs[wide] = replace(now.costs[wide], tokens=857)
    assert filled(now, default, found, looked_at) is None, "one level, two numbers of words"


def test_bytes_and_seconds_are_scaled() -> None:
    default = sized([(280, 280 + 28 * n) for n in range(20)])
    default = table(
        *(replace(c, tensor_bytes=c.embeds * 1000, process_s=1.0) for c in default.of("image"))
    )
    found = counts(default.of("image"), 50)
    looked_at = spots(default.of("image"), found)
    table_ = filled(measured(default, looked_at, 50), default, found, looked_at)
    assert table_ is not None
    computed = [c for c in table_.of("image") if c.basis == "counted"]
    assert computed
    assert {(c.tensor_bytes, round(c.process_s, 6)) for c in computed} == {(50_000, 0.1)}


def test_what_was_sampled_is_part_of_the_proof() -> None:
    shape = ImageShape(280, 280)
    default = sized([(280, 280)])
    assert reproduces({shape: VllmCount(100, ())}, default.of("image"))
    assert not reproduces({shape: VllmCount(100, (140, 140))}, default.of("image"))
    assert not reproduces({shape: VllmCount(99, ())}, default.of("image"))
    assert not reproduces({}, default.of("image"))
