"""Bytes used since, against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.processor_cache import Recency


@given(st.lists(st.one_of(st.integers(1, 99), st.floats(0, 1, exclude_max=True)), max_size=400))
def test_it_sums_what_a_list_would(steps: list[int | float]) -> None:
    """A whole number is added; a share says which position is asked from, and moved to the end."""
    recency, plain = Recency(), list[int]()
    for step in steps:
        if isinstance(step, int):
            assert recency.append(step) == len(plain)
            plain.append(step)
        elif plain:
            position = int(step * len(plain))
            assert recency.since(position) == sum(plain[position:])
            assert recency.renew(position) == len(plain)
            plain.append(plain[position])
            plain[position] = 0
            assert recency.since(position) == sum(plain[position:])
        assert list(recency.sizes) == plain
        assert recency.total == sum(plain)


def test_blocks_upon_blocks_add_up() -> None:
    recency, plain = Recency(), list(range(5000))
    for nbytes in plain:
        recency.append(nbytes)
    for position in range(0, 5000, 7):
        recency.renew(position)
        plain.append(plain[position])
        plain[position] = 0
    for position in range(0, len(plain) + 1, 13):
        assert recency.since(position) == sum(plain[position:])
