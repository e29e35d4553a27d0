from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.counting import CostRule, VllmCount, cost_rule, follows
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import ImageShape
from tests.derive.costed import counts_of

EMBEDS = st.sets(st.integers(0, 20_000), min_size=3, max_size=40)


def item(embeds: int, text: int = 2, nbytes: int | None = None) -> Cost:
    return Cost(embeds + text, embeds, 24 + 4704 * embeds if nbytes is None else nbytes, 0, 0.1, ())


def rule_of(*costs: Cost, parts: tuple[int | None, ...] = ()) -> CostRule | None:
    of = parts or (None,) * len(costs)
    pairs = zip(costs, of, strict=True)
    return cost_rule([(VllmCount(cost.embeds, (), number), cost) for cost, number in pairs])


def says(rule: CostRule, embeds: int, parts: int | None = None) -> tuple[int, int]:
    """Text and bytes of one item."""
    counted = counts_of({ImageShape(28, 28): VllmCount(embeds, (), parts)})
    (text,), (nbytes,) = rule.columns(counted)
    return int(text), int(nbytes)


@given(EMBEDS, st.integers(-9, 9), st.integers(0, 10**6))
def test_a_line_says_what_lies_between_its_ends(embeds, slope: int, start: int) -> None:
    found = follows((e, start + slope * e) for e in embeds)
    assert found is not None
    assert all(found(e) == start + slope * e for e in range(min(embeds), max(embeds) + 1))
    assert found(max(embeds) + 1) is None
    assert found(min(embeds) - 1) is None


def test_what_is_no_line_is_known_of_witnessed_numbers_alone() -> None:
    """Tiles of Gemma 3: a frame of words around each crop beside the whole."""
    found = follows([(256, 2), (768, 9), (1024, 12), (1024, 12)])
    assert found is not None
    assert [found(n) for n in (256, 768, 1024, 512)] == [2, 9, 12, None]


def test_equal_numbers_with_unequal_ones_beside_them_make_no_rule() -> None:
    assert follows([(1, 1), (2, 2), (2, 3)]) is None
    assert rule_of(item(5), item(6), item(7), item(7, nbytes=1)) is None


def test_many_on_a_line_say_what_lies_between_them_though_others_are_not() -> None:
    """Sounds longer than a processor pads to, of which it cuts off the rest."""
    found = follows([*((n, 3 * n) for n in range(0, 100, 10)), (95, 280), (100, 280), (120, 280)])
    assert found is not None
    assert [found(n) for n in (45, 90, 93, 95, 98, 120)] == [135, 270, None, 280, None, 280]


@given(EMBEDS, st.integers(8, 20), st.integers(8, 20))
def test_pieces_of_a_line_agree_with_all_that_is_known(others, rising: int, level: int) -> None:
    pairs = {**{n: 2 * n for n in range(rising)}, **{100 + 3 * n: 50 for n in range(level)}}
    pairs |= {1_000 + other: other**2 for other in others}
    found = follows(pairs.items())
    assert found is not None
    assert all(found(first) == second for first, second in pairs.items())
    assert (found(101), found(90)) == (50, None)


def test_a_line_never_gives_a_fraction_of_a_byte() -> None:
    found = follows([(0, 0), (2, 1), (4, 2)])
    assert found is not None
    assert [found(n) for n in range(5)] == [0, None, 1, None, 2]


def test_an_item_costs_what_the_witnesses_say() -> None:
    rule = rule_of(item(10), item(20), item(40))
    assert rule is not None
    assert says(rule, 30) == (2, 24 + 4704 * 30)
    assert says(rule, 50) == (-1, -1)
    assert rule.seconds_per_embed == pytest.approx(0.3 / 70)


def test_nothing_proves_nothing() -> None:
    assert cost_rule([]) is None
    assert rule_of(item(0), item(0)) is None


def test_bytes_may_follow_from_the_tiles_where_they_do_not_from_the_embeds() -> None:
    """LLaVA-OneVision: the padding of a tile is in its tensor, and no embed of the image."""
    witnesses = item(700, nbytes=216), item(701, nbytes=216), item(701, nbytes=316)
    assert rule_of(*witnesses) is None
    assert rule_of(*witnesses, parts=(2, 2, None)) is None
    assert rule_of(*witnesses, parts=(2, 2, 2)) is None
    rule = rule_of(*witnesses, parts=(2, 2, 3))
    assert rule is not None
    assert [says(rule, 701, parts)[1] for parts in (2, 3, 4, None)] == [216, 316, -1, -1]


def test_a_line_by_the_frames_is_preferred_to_single_numbers_of_embeds() -> None:
    """Qwen2.5-Omni: four frames of a sound are one embed, and a witness has few of its embeds."""
    frames = [40, 83, 121, 166, 207]
    witnesses = [item(number // 4, nbytes=8 + 256 * number) for number in frames]
    rule = rule_of(*witnesses, parts=tuple(frames))
    assert rule is not None
    assert rule.by_parts
    assert says(rule, 25, 100) == (2, 8 + 256 * 100)
