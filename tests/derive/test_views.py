from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.demand import pinned, repeated

SIZES = st.lists(st.integers(1, 500), max_size=40)


def test_without_repeats_one_batch_stays_beside_the_cache() -> None:
    found = pinned([], 2400, 1000, known=True)
    assert (found.tokens, found.batches) == (3400, 0)


def test_every_item_that_stays_keeps_what_is_left_of_the_cache() -> None:
    found = pinned([4, 4, 4], 100, 60, known=False)
    assert (found.tokens, found.batches) == (180, 3)
    assert pinned([60, 60], 100, 60, known=False).tokens == 100


@given(SIZES, st.integers(1, 3000), st.integers(1, 3000), st.booleans())
def test_more_items_that_stay_never_keep_less(
    sizes: list[int], cache: int, batch: int, known: bool
) -> None:
    less = pinned(sizes[1:], cache, batch, known=known)
    more = pinned(sizes, cache, batch, known=known)
    assert cache <= less.tokens <= more.tokens
    assert more.tokens <= (more.batches + 1) * batch + cache


def test_an_item_twice_in_one_request_is_asked_for_once() -> None:
    assert list(repeated([[1, 1], [2], [1, 3], [1]])) == [1]
