import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import ImageShape, Shape, weight
from mmcalib.limits import counting
from mmcalib.limits.costs import CostColumns, CostTable
from tests.builders import expect, some
from tests.limits.costed import UNIT, counts_of, sized, table, table_of

SIDES = st.integers(28, 4000)
CORPORA = st.lists(
    st.tuples(SIDES, SIDES), min_size=counting.SPOT_CHECKS + 1, max_size=40, unique=True
)
CAPS = st.integers(1, 200)


def counts(costs: CostColumns, cap: int = 10**9) -> counting.VllmCounts:
    found: dict[Shape, counting.VllmCount] = {
        c.shape: counting.VllmCount(min(c.embeds, cap), c.sampled) for c in costs
    }
    return counts_of(found)


def measured(default: CostTable, shapes: list[Shape], cap: int, beside: int = 0) -> CostTable:
    """The default's table with these shapes as a processor with this cap would cost them."""
    costs = {s: replace(c, basis="unchanged") for s, c in default.costs.items()}
    for shape in shapes:
        embeds = min(default.costs[shape].embeds, cap)
        costs[shape] = replace(
            default.costs[shape], tokens=embeds + beside, embeds=embeds, process_s=0.1
        )
    return table_of(default.setting, costs)


@given(CORPORA, CAPS)
def test_everything_is_as_if_it_had_been_measured(sizes, cap: int) -> None:
    """And a processor that does not do what is counted is found out."""
    default = sized(sizes)
    every, images = list(default.costs), default.columns_of("image")
    found = counts(images, cap)
    moved = np.flatnonzero(~counting.match_counts(found, images))
    if not len(moved):
        return
    looked_at = counting.choose_spot_checks(images, moved, found)
    assert len(looked_at) <= counting.SPOT_CHECKS + 2 * 16
    table_ = some(counting.fill_table(measured(default, looked_at, cap), default, found, looked_at))
    truth = measured(default, every, cap)
    assert [(c.tokens, c.embeds) for c in table_.costs.values()] == [
        (c.tokens, c.embeds) for c in truth.costs.values()
    ]
    bases = {s: c.basis for s, c in table_.costs.items()}
    counted = {s for s, basis in bases.items() if basis == "counted"}
    assert counted == {images.shapes[row] for row in moved} - set(looked_at)
    deaf = measured(default, looked_at, 10**9)
    assert counting.fill_table(deaf, default, found, looked_at) is None


def test_tokens_beside_the_embeds_follow_the_level() -> None:
    """Gemma 3's crops: two sizes of embeds, each with words of its own around it."""
    default = sized([(280, 280 + 28 * n) for n in range(20)])
    costs = default.columns_of("image")
    embeds = {c.shape: 256 if c.embeds < 150 else 768 for c in costs}
    found = counts_of({shape: counting.VllmCount(n, ()) for shape, n in embeds.items()})
    looked_at = counting.choose_spot_checks(costs, np.arange(20), found)
    now = dict(measured(default, looked_at, 10**9).costs)
    for shape in looked_at:
        around = 4 if embeds[shape] == 256 else 88
        tokens = embeds[shape] + around
        now[shape] = replace(now[shape], embeds=embeds[shape], tokens=tokens)
    table_ = some(counting.fill_table(table_of(default.setting, now), default, found, looked_at))
    assert {c.tokens for c in table_.columns_of("image")} == {260, 856}
    wide = next(s for s in looked_at if embeds[s] == 768)
    now[wide] = replace(now[wide], tokens=857)
    # One level, two numbers of words.
    odd = table_of(default.setting, now)
    assert counting.fill_table(odd, default, found, looked_at) is None


def test_bytes_and_seconds_are_scaled() -> None:
    costs = sized([(280, 280 + 28 * n) for n in range(20)]).columns_of("image")
    default = table(*(replace(c, tensor_bytes=c.embeds * 1000, process_s=1.0) for c in costs))
    found = counts(default.columns_of("image"), 50)
    looked_at = counting.choose_spot_checks(default.columns_of("image"), np.arange(20), found)
    table_ = some(counting.fill_table(measured(default, looked_at, 50), default, found, looked_at))
    computed = [c for c in table_.columns_of("image") if c.basis == "counted"]
    assert computed
    assert {(c.tensor_bytes, round(c.process_s, 6)) for c in computed} == {(50_000, 0.1)}


def test_what_was_sampled_is_part_of_the_proof() -> None:
    shape = ImageShape(280, 280)
    costs = sized([(280, 280)]).columns_of("image")

    def says(*counted: counting.VllmCount) -> bool:
        return bool(counting.match_counts(counts_of(dict.fromkeys([shape], *counted)), costs).all())

    assert says(counting.VllmCount(100, ()))
    assert not says(counting.VllmCount(100, (140, 140)))
    assert not says(counting.VllmCount(99, ()))
    assert not counting.match_counts(counts_of({}), costs).all()


EMBEDS = st.sets(st.integers(0, 20_000), min_size=3, max_size=40)


def item(embeds: int, text: int = 2, nbytes: int | None = None) -> Cost:
    return Cost(embeds + text, embeds, 24 + 4704 * embeds if nbytes is None else nbytes, 0, 0.1, ())


def rule_of(*costs: Cost, parts: tuple[int | None, ...] = ()) -> counting.CostRule | None:
    of = parts or (None,) * len(costs)
    pairs = zip(costs, of, strict=True)
    counted = [(counting.VllmCount(cost.embeds, (), number), cost) for cost, number in pairs]
    return counting.fit_cost_rule(counted)


def says(rule: counting.CostRule, embeds: int, parts: int | None = None) -> tuple[int, int]:
    """Text and bytes of one item."""
    counted = counts_of({ImageShape(28, 28): counting.VllmCount(embeds, (), parts)})
    (text,), (nbytes,) = rule.columns(counted)
    return int(text), int(nbytes)


@given(EMBEDS, st.integers(-9, 9), st.integers(0, 10**6))
def test_a_line_says_what_lies_between_its_ends(embeds, slope: int, start: int) -> None:
    found = some(counting.fit_relation((e, start + slope * e) for e in embeds))
    assert all(found(e) == start + slope * e for e in range(min(embeds), max(embeds) + 1))
    assert found(max(embeds) + 1) is None
    assert found(min(embeds) - 1) is None


def test_what_is_no_line_is_known_of_witnessed_numbers_alone() -> None:
    """Tiles of Gemma 3: a frame of words around each crop beside the whole."""
    found = some(counting.fit_relation([(256, 2), (768, 9), (1024, 12), (1024, 12)]))
    assert [found(n) for n in (256, 768, 1024, 512)] == [2, 9, 12, None]


def test_equal_numbers_with_unequal_ones_beside_them_make_no_rule() -> None:
    assert counting.fit_relation([(1, 1), (2, 2), (2, 3)]) is None
    assert rule_of(item(5), item(6), item(7), item(7, nbytes=1)) is None


def test_many_on_a_line_say_what_lies_between_them_though_others_are_not() -> None:
    """Sounds longer than a processor pads to, of which it cuts off the rest."""
    padded = [(n, 3 * n) for n in range(0, 100, 10)]
    found = some(counting.fit_relation([*padded, (95, 280), (100, 280), (120, 280)]))
    assert [found(n) for n in (45, 90, 93, 95, 98, 120)] == [135, 270, None, 280, None, 280]


@given(EMBEDS, st.integers(8, 20), st.integers(8, 20))
def test_pieces_of_a_line_agree_with_all_that_is_known(others, rising: int, level: int) -> None:
    pairs = {**{n: 2 * n for n in range(rising)}, **{100 + 3 * n: 50 for n in range(level)}}
    pairs |= {1_000 + other: other**2 for other in others}
    found = some(counting.fit_relation(pairs.items()))
    assert all(found(first) == second for first, second in pairs.items())
    assert (found(101), found(90)) == (50, None)


def test_a_line_never_gives_a_fraction_of_a_byte() -> None:
    found = some(counting.fit_relation([(0, 0), (2, 1), (4, 2)]))
    assert [found(n) for n in range(5)] == [0, None, 1, None, 2]


def test_an_item_costs_what_the_witnesses_say() -> None:
    rule = some(rule_of(item(10), item(20), item(40)))
    assert says(rule, 30) == (2, 24 + 4704 * 30)
    assert says(rule, 50) == (-1, -1)
    assert rule.seconds_per_embed == pytest.approx(0.3 / 70)


def test_bytes_may_follow_from_the_tiles_where_they_do_not_from_the_embeds() -> None:
    """LLaVA-OneVision: the padding of a tile is in its tensor, and no embed of the image."""
    witnesses = item(700, nbytes=216), item(701, nbytes=216), item(701, nbytes=316)
    assert rule_of(*witnesses) is None
    assert rule_of(*witnesses, parts=(2, 2, None)) is None
    assert rule_of(*witnesses, parts=(2, 2, 2)) is None
    rule = some(rule_of(*witnesses, parts=(2, 2, 3)))
    assert [says(rule, 701, parts)[1] for parts in (2, 3, 4, None)] == [216, 316, -1, -1]


def test_a_line_by_the_frames_is_preferred_to_single_numbers_of_embeds() -> None:
    """Qwen2.5-Omni: four frames of a sound are one embed, and a witness has few of its embeds."""
    frames = [40, 83, 121, 166, 207]
    witnesses = [item(number // 4, nbytes=8 + 256 * number) for number in frames]
    rule = some(rule_of(*witnesses, parts=tuple(frames)))
    assert rule.by_parts
    assert says(rule, 25, 100) == (2, 8 + 256 * 100)


def picked_of(counts: dict[Shape, counting.VllmCount]) -> list[Shape]:
    return counting.choose_probe_shapes(counts_of(counts))


def slope(shape: Shape) -> float:
    image = expect(ImageShape, shape)
    return image.width_px / image.height_px


def corpus(shapes: int, seed: int = 1) -> dict[Shape, counting.VllmCount]:
    chance = random.Random(seed)
    sizes = {(chance.randint(56, 4000), chance.randint(56, 4000)) for _ in range(shapes)}
    return {ImageShape(w, h): counting.VllmCount(max(1, w * h // UNIT), (w, h)) for w, h in sizes}


@pytest.mark.parametrize("shapes", [50, 2_000, 40_000])
def test_all_of_a_small_corpus_are_picked_and_enough_of_a_large_one(shapes: int) -> None:
    found = corpus(shapes)
    picked = picked_of(found)
    assert len(set(picked)) == len(picked) == min(len(found), counting.PROBES)
    assert set(picked) <= set(found)


def test_the_extremes_are_among_them_and_both_sides_of_steps() -> None:
    found = corpus(5_000)
    picked = set(picked_of(found))
    assert max(found, key=lambda s: found[s].embeds) in picked
    assert min(found, key=slope) in picked
    assert max(found, key=weight) in picked
    pairs = pairwise(sorted(found, key=lambda s: (found[s].embeds, weight(s))))
    both = [1 for a, b in pairs if a in picked and b in picked and found[a] != found[b]]
    assert len(both) > 50


def test_of_few_levels_the_flattest_and_the_tallest_of_each() -> None:
    """Tiles: whether a picture is flat decides which layout it gets."""
    found: dict[Shape, counting.VllmCount] = {
        shape: counting.VllmCount(256 * (1 + int(weight(shape)) % 13), (1, 1))
        for shape in corpus(3_000)
    }
    picked = set(picked_of(found))
    for level in {count.embeds for count in found.values()}:
        mine = [shape for shape, count in found.items() if count.embeds == level]
        assert max(mine, key=slope) in picked
        assert min(mine, key=slope) in picked
