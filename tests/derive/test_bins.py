from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.distribution import edge, place, size_cells, token_bins
from mmcalib.domain.shapes import AudioShape, ImageShape
from tests.derive.costed import cost

TOKENS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 9)), max_size=30)


@given(TOKENS)
def test_every_item_is_in_the_bin_of_its_tokens(found) -> None:
    costs = [cost(ImageShape(1 + n, 1), tokens, items) for n, (tokens, items) in enumerate(found)]
    bins = token_bins(costs)
    assert sum(b.items for b in bins) == sum(items for _, items in found)
    assert sum(b.shapes for b in bins) == len(found)
    for one, after in pairwise(bins):
        assert one.most_tokens < after.least_tokens
    for b in bins:
        inside = [n for t, n in found if b.least_tokens <= max(1, t) <= b.most_tokens]
        assert (len(inside), sum(inside)) == (b.shapes, b.items)
        # Read back, it falls into the same bin.
        assert edge(place(b.least_tokens)) <= b.least_tokens < edge(place(b.least_tokens) + 1)
        assert b.most_tokens < edge(place(b.least_tokens) + 1)


def test_a_cell_names_the_costliest_of_about_one_size() -> None:
    costs = [cost(ImageShape(w, 600), w) for w in (800, 801, 805, 1600)]
    costs.append(cost(AudioShape(16_000, 16_000), 9))
    found = [(c.width_px, c.height_px, c.tokens, c.shapes) for c in size_cells(costs)]
    assert found == [(805, 600, 805, 3), (1600, 600, 1600, 1)]
