from __future__ import annotations

import random
from itertools import pairwise

from mmcalib.derive.counting import WITNESSES, VllmCount, witnesses
from mmcalib.domain.shapes import ImageShape, Shape, weight
from tests.derive.costed import UNIT, counts_of


def picked_of(counts: dict[Shape, VllmCount]) -> list[Shape]:
    return witnesses(counts_of(counts))


def slope(shape: Shape) -> float:
    assert isinstance(shape, ImageShape)
    return shape.width_px / shape.height_px


def corpus(shapes: int, seed: int = 1) -> dict[Shape, VllmCount]:
    chance = random.Random(seed)
    sizes = {(chance.randint(56, 4000), chance.randint(56, 4000)) for _ in range(shapes)}
    return {ImageShape(w, h): VllmCount(max(1, w * h // UNIT), (w, h)) for w, h in sizes}


def test_enough_are_picked_and_no_more_of_a_large_corpus() -> None:
    few, many = picked_of(corpus(2_000)), picked_of(corpus(40_000))
    assert len(set(few)) == len(few) == WITNESSES
    assert len(set(many)) == len(many) == WITNESSES


def test_all_of_a_small_corpus() -> None:
    found = corpus(50)
    assert set(picked_of(found)) == set(found)


def test_the_extremes_are_among_them_and_both_sides_of_steps() -> None:
    found = corpus(5_000)
    picked = set(picked_of(found))
    assert max(found, key=lambda s: found[s].embeds) in picked
    assert min(found, key=slope) in picked
    assert max(found, key=weight) in picked
    order = sorted(found, key=lambda s: (found[s].embeds, weight(s)))
    pairs = pairwise(order)
    both = [1 for a, b in pairs if a in picked and b in picked and found[a] != found[b]]
    assert len(both) > 50


def test_of_few_levels_the_flattest_and_the_tallest_of_each() -> None:
    """Tiles: whether a picture is flat decides which layout it gets."""
    found: dict[Shape, VllmCount] = {
        shape: VllmCount(256 * (1 + int(weight(shape)) % 13), (1, 1)) for shape in corpus(3_000)
    }
    picked = set(picked_of(found))
    for level in {count.embeds for count in found.values()}:
        mine = [shape for shape, count in found.items() if count.embeds == level]
        assert max(mine, key=slope) in picked
        assert min(mine, key=slope) in picked


def test_the_same_corpus_gives_the_same_in_any_order() -> None:
    found = corpus(3_000)
    turned = dict(sorted(found.items(), key=lambda entry: str(entry[0])))
    assert set(picked_of(found)) == set(picked_of(turned))
