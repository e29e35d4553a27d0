from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.checks.dialect import Dialect
from mmcalib.checks.items import excess_check
from mmcalib.derive.demand import Excess, excesses
from mmcalib.derive.item_cost import ItemCost
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape
from tests.derive.costed import table

# Qwen2-Audio's input features of any clip: 128 mel bins by 3,000 frames, in 4 bytes.
PADDED = 128 * 3000 * 4
RATE = 16_000


def cost(shape: Shape, embeds: int, tensor_bytes: int) -> ItemCost:
    return ItemCost(shape, 1, f"{shape}", embeds, embeds, tensor_bytes, 0.0, (), "real")


def clip(seconds: float) -> ItemCost:
    return cost(AudioShape(int(seconds * RATE), RATE), int(25 * seconds), PADDED)


def budget(tokens: int, dummies: dict[Modality, Dummy], seqs: int = 256) -> Budget:
    return Budget(tokens, tokens, {}, {}, {}, None, 0, dummies, 32_768, tokens, seqs)


LISTENER = budget(2250, {"audio": Dummy(750, PADDED, {})})


def found(*costs: ItemCost, of: Budget = LISTENER, count: int = 1) -> list[Excess]:
    return list(excesses(table(*costs), of, of, {costs[0].shape.modality: count}))


def test_clips_that_are_padded_are_as_heavy_as_the_longest() -> None:
    """Three clips of 30 s are profiled; 90 of one second have as many tokens."""
    (excess,) = found(clip(30), clip(1))
    assert (excess.items, excess.times, excess.max_num_seqs) == (90, 30.0, 3)
    assert excess.cost.embeds == 25


def test_no_more_come_than_sequences_bring() -> None:
    (excess,) = found(clip(1), of=replace(LISTENER, max_num_seqs=4), count=2)
    assert (excess.items, excess.max_num_seqs) == (8, 1)
    assert found(clip(1), of=replace(LISTENER, max_num_seqs=3)) == []


def test_what_grows_with_tokens_is_no_excess() -> None:
    sizes = [(ImageShape(28 * n, 28), n, n * 4704 + 24) for n in (1, 7, 1280)]
    model = budget(8192, {"image": Dummy(1280, 1280 * 4704 + 24, {})})
    assert found(*(cost(*size) for size in sizes), of=model) == []


def test_more_tiles_for_as_many_tokens_are_one() -> None:
    """LLaVA-OneVision merges the tokens of many tiles: one image is beyond what is profiled."""
    model = budget(8748, {"image": Dummy(8748, 15_000, {})})
    (excess,) = found(cost(ImageShape(4000, 1000), 7309, 37_000), of=model)
    assert (excess.items, excess.max_num_seqs) == (1, 0)
    check = excess_check(excess, Dialect.FLAGS)
    assert check.name == "image input reserved"
    assert check.status == "warn"
    assert "max-num-seqs" not in check.remedy


def test_without_a_dummy_nothing_is_said() -> None:
    assert found(clip(1), of=budget(2250, {})) == []


@given(st.lists(st.integers(1, 750), min_size=1), st.integers(1, 300), st.integers(1, 4))
def test_the_remedy_is_one(embeds: list[int], seqs: int, count: int) -> None:
    costs = [cost(AudioShape(n, RATE), n, PADDED) for n in set(embeds)]
    for excess in found(*costs, of=replace(LISTENER, max_num_seqs=seqs), count=count):
        assert excess.max_num_seqs < seqs
        if excess.max_num_seqs:
            kept = replace(LISTENER, max_num_seqs=excess.max_num_seqs)
            assert found(*costs, of=kept, count=count) == []


def test_the_check_says_which_item_and_what_helps() -> None:
    (excess,) = found(clip(30), clip(1))
    check = excess_check(excess, Dialect.FLAGS)
    assert "90 items" in check.detail
    assert "30.0 times" in check.detail
    assert check.remedy.startswith("-- --max-num-seqs 3, or")


def test_counts_of_none_are_not_served() -> None:
    assert list(excesses(table(clip(1)), LISTENER, LISTENER, {"audio": 0})) == []


@pytest.mark.parametrize("seconds", [30, 29])
def test_the_longest_alone_are_what_is_profiled(seconds: int) -> None:
    assert found(clip(seconds)) == []
