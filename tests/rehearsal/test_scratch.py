from dataclasses import dataclass
from math import prod

import pytest

from mmcalib.child.rehearsal.scratch import (
    index_put_scratch_bytes,
    scratch_bytes,
    sort_scratch_bytes,
    topk_scratch_bytes,
)

ROWS, VOCABULARY = 1024, 151_936
LOGITS = ROWS * VOCABULARY


@dataclass
class Type:
    itemsize: int
    is_floating_point: bool


FLOAT, BFLOAT, INT, LONG = Type(4, True), Type(2, True), Type(4, False), Type(8, False)


@dataclass
class Tensor:
    """The part of a torch.Tensor that sizing looks at."""

    shape: tuple[int, ...]
    dtype: Type
    steps: tuple[int, ...] | None = None

    def _dense(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        steps = self.steps or self._dense()
        return steps if dim is None else steps[dim]

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return self.stride() == self._dense()


def test_sorting_the_samplers_logits_takes_twenty_bytes_for_each() -> None:
    """8 B of indices, and 4 B of keys with 8 B of values for the radix sort's other buffers."""
    nbytes = scratch_bytes("sort", (Tensor((ROWS, VOCABULARY), FLOAT),), {"dim": -1})
    assert nbytes == 20 * LOGITS == 3_111_649_280


@pytest.mark.parametrize(
    ("rows", "row_length", "element_bytes", "low", "high"),
    [
        (128, VOCABULARY, 4, 20, 20),
        (128, VOCABULARY, 2, 18, 18),
        (127, VOCABULARY, 4, 32, 32.5),
        (1, VOCABULARY, 4, 20, 20.5),
        (16, 1_000_000, 4, 20 / 16, 20.5 / 16),
        (4, 4096, 4, 2, 2),
    ],
)
def test_sort_by_number_and_length_of_rows(rows, row_length, element_bytes: int, low, high) -> None:
    numel = rows * row_length
    assert low <= sort_scratch_bytes(numel, row_length, element_bytes) / numel <= high


def test_a_sort_past_int_max_goes_in_batches_of_rows() -> None:
    batch = (2**31 - 1) // VOCABULARY * VOCABULARY
    assert sort_scratch_bytes(20_000 * VOCABULARY, VOCABULARY, 4) == 20 * batch


def test_a_sort_across_rows_first_turns_them() -> None:
    upright = Tensor((VOCABULARY, ROWS), FLOAT)
    turned = Tensor((ROWS, VOCABULARY), FLOAT, (1, ROWS))
    along_memory = Tensor((VOCABULARY, ROWS), FLOAT, (1, VOCABULARY))
    assert scratch_bytes("sort", (upright, 0), {}) == (20 + 16) * LOGITS
    assert scratch_bytes("sort", (turned, -1), {}) == (20 + 16) * LOGITS
    assert scratch_bytes("sort", (along_memory, 0), {}) == 20 * LOGITS
    assert scratch_bytes("sort", (along_memory,), {"stable": True, "dim": 0}) == 20 * LOGITS


def test_topk_counts_digits() -> None:
    nbytes = scratch_bytes("topk", (Tensor((ROWS, VOCABULARY), FLOAT), 20), {})
    blocks = ROWS * 10  # of 64 × 256 elements
    assert nbytes == blocks * (512 + 8) + ROWS * (12 + 12 + 1024)
    assert nbytes / LOGITS < 0.05


def test_topk_sorts_many_winners_and_nothing_of_short_rows() -> None:
    assert topk_scratch_bytes(8 * 1000, 1000, 20, 4) == 0
    nbytes = topk_scratch_bytes(LOGITS, VOCABULARY, 5000, 4)
    assert nbytes == ROWS * 5000 * 12 + sort_scratch_bytes(ROWS * 5000, 5000, 4)


def test_cumsum_of_narrow_integers_widens_them_first() -> None:
    mask = Tensor((ROWS, VOCABULARY), INT)
    assert scratch_bytes("cumsum", (mask, -1), {}) == 8 * LOGITS
    assert scratch_bytes("cumsum", (mask, -1), {"dtype": LONG}) == 8 * LOGITS
    for wide in (LONG, FLOAT):
        assert scratch_bytes("cumsum", (Tensor((ROWS, VOCABULARY), wide), -1), {}) == 0


def test_masked_scatter_of_embeddings_takes_nine_bytes_for_each() -> None:
    """An int64 prefix sum, and the mask of shape [tokens, 1] written out as bools."""
    tokens, hidden = 16_384, 3584
    embeds = Tensor((tokens, hidden), BFLOAT)
    mask = Tensor((tokens, 1), Type(1, False))
    source = Tensor((8192, hidden), BFLOAT)
    nbytes = scratch_bytes("masked_scatter_", (embeds, mask, source), {})
    assert nbytes == 9 * tokens * hidden == 528_482_304
    whole = Tensor((tokens, hidden), Type(1, False))
    nbytes = scratch_bytes("masked_scatter_", (embeds, whole, source), {})
    assert nbytes == 8 * tokens * hidden


def test_index_put_sorts_only_to_accumulate() -> None:
    table, rows = Tensor((1000, 64), FLOAT), Tensor((512,), LONG)
    values, expanding = Tensor((512, 64), FLOAT), Tensor((1, 64), FLOAT)
    sorting = index_put_scratch_bytes(512)
    assert scratch_bytes("index_put_", (table, [rows], values), {}) == 0
    assert scratch_bytes("index_put_", (table, [rows], values, True), {}) == sorting
    nbytes = scratch_bytes("index_put_", (table, [rows], expanding, True), {})
    assert nbytes == 512 * 64 * 4 + sorting
    assert 48 * 512 <= sorting <= 50 * 512


def test_multinomial_draws_for_each_probability() -> None:
    probabilities = Tensor((ROWS, VOCABULARY), FLOAT)
    assert scratch_bytes("multinomial", (probabilities, 1), {}) == 4 * LOGITS
    assert scratch_bytes("multinomial", (probabilities, 2, True), {}) == 12 * LOGITS


def test_unique_sorts() -> None:
    ids = Tensor((1 << 20,), LONG)
    assert 16 <= scratch_bytes("_unique2", (ids,), {}) / (1 << 20) < 16.5
    with_inverse = scratch_bytes("_unique2", (ids, True, True), {})
    assert 40 <= with_inverse / (1 << 20) < 40.5


@pytest.mark.parametrize("name", ["mm", "add", "_softmax", "argmax", "nonzero"])
def test_other_operations_take_none_that_is_known(name: str) -> None:
    assert scratch_bytes(name, (Tensor((ROWS, VOCABULARY), FLOAT),), {}) == 0


@pytest.mark.parametrize("name", ["sort", "topk", "cumsum", "masked_scatter_"])
def test_nothing_needs_nothing(name: str) -> None:
    empty = Tensor((0, VOCABULARY), FLOAT)
    assert scratch_bytes(name, (empty, empty, empty), {}) == 0
    assert scratch_bytes(name, (), {}) == 0


def test_a_scalar_is_sorted_without_scratch() -> None:
    assert scratch_bytes("sort", (Tensor((), FLOAT),), {}) == 0
