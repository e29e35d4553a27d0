from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which comes with vLLM: make setup")

from mmcalib.child.rehearsal import scratch  # noqa: E402
from mmcalib.child.rehearsal.scratch import scratch_bytes, sort_scratch_bytes  # noqa: E402

ROWS, VOCABULARY = 1024, 151_936
LOGITS = ROWS * VOCABULARY
FLOAT, BFLOAT, INT, LONG = torch.float32, torch.bfloat16, torch.int32, torch.int64


def tensor(*shape: int, dtype: Any = FLOAT) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


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


def test_sorting_the_samplers_logits_takes_twenty_bytes_for_each() -> None:
    """8 B of indices, and 4 B of keys with 8 B of values for the radix sort's other buffers."""
    logits, upright = tensor(ROWS, VOCABULARY), tensor(VOCABULARY, ROWS)
    assert scratch_bytes("sort", (logits,), {"dim": -1}) == 20 * LOGITS == 3_111_649_280
    # Across rows it first turns them.
    assert scratch_bytes("sort", (upright, 0), {}) == (20 + 16) * LOGITS
    assert scratch_bytes("sort", (upright.t(), -1), {}) == (20 + 16) * LOGITS
    assert scratch_bytes("sort", (logits.t(), 0), {}) == 20 * LOGITS
    assert scratch_bytes("sort", (logits.t(),), {"stable": True, "dim": 0}) == 20 * LOGITS


def test_topk_counts_digits() -> None:
    nbytes = scratch_bytes("topk", (tensor(ROWS, VOCABULARY), 20), {})
    blocks = ROWS * 10  # of 64 × 256 elements
    assert nbytes == blocks * (512 + 8) + ROWS * (12 + 12 + 1024)
    assert nbytes / LOGITS < 0.05


def test_topk_sorts_many_winners_and_nothing_of_short_rows() -> None:
    assert scratch.topk_scratch_bytes(8 * 1000, 1000, 20, 4) == 0
    nbytes = scratch.topk_scratch_bytes(LOGITS, VOCABULARY, 5000, 4)
    assert nbytes == ROWS * 5000 * 12 + sort_scratch_bytes(ROWS * 5000, 5000, 4)


def test_cumsum_of_narrow_integers_widens_them_first() -> None:
    mask = tensor(ROWS, VOCABULARY, dtype=INT)
    assert scratch_bytes("cumsum", (mask, -1), {}) == 8 * LOGITS
    assert scratch_bytes("cumsum", (mask, -1), {"dtype": LONG}) == 8 * LOGITS
    for wide in (LONG, FLOAT):
        assert scratch_bytes("cumsum", (tensor(ROWS, VOCABULARY, dtype=wide), -1), {}) == 0


def test_masked_scatter_of_embeddings_takes_nine_bytes_for_each() -> None:
    """An int64 prefix sum, and the mask of shape [tokens, 1] written out as bools."""
    tokens, hidden = 16_384, 3584
    embeds, source = tensor(tokens, hidden, dtype=BFLOAT), tensor(8192, hidden, dtype=BFLOAT)
    for width, taken in ((1, 9), (hidden, 8)):
        mask = tensor(tokens, width, dtype=torch.bool)
        nbytes = scratch_bytes("masked_scatter_", (embeds, mask, source), {})
        assert nbytes == taken * tokens * hidden
    assert 9 * tokens * hidden == 528_482_304


def test_index_put_sorts_only_to_accumulate() -> None:
    table, rows = tensor(1000, 64), tensor(512, dtype=LONG)
    values, expanding = tensor(512, 64), tensor(1, 64)
    sorting = scratch.index_put_scratch_bytes(512)
    assert scratch_bytes("index_put_", (table, [rows], values), {}) == 0
    assert scratch_bytes("index_put_", (table, [rows], values, True), {}) == sorting
    nbytes = scratch_bytes("index_put_", (table, [rows], expanding, True), {})
    assert nbytes == 512 * 64 * 4 + sorting
    assert 48 * 512 <= sorting <= 50 * 512


def test_multinomial_draws_for_each_probability() -> None:
    probabilities = tensor(ROWS, VOCABULARY)
    assert scratch_bytes("multinomial", (probabilities, 1), {}) == 4 * LOGITS
    assert scratch_bytes("multinomial", (probabilities, 2, True), {}) == 12 * LOGITS


def test_unique_sorts() -> None:
    ids = tensor(1 << 20, dtype=LONG)
    assert 16 <= scratch_bytes("_unique2", (ids,), {}) / (1 << 20) < 16.5
    with_inverse = scratch_bytes("_unique2", (ids, True, True), {})
    assert 40 <= with_inverse / (1 << 20) < 40.5


@pytest.mark.parametrize("name", ["mm", "add", "_softmax", "argmax", "nonzero"])
def test_other_operations_take_none_that_is_known(name: str) -> None:
    assert scratch_bytes(name, (tensor(ROWS, VOCABULARY),), {}) == 0


@pytest.mark.parametrize("name", ["sort", "topk", "cumsum", "masked_scatter_"])
def test_nothing_and_a_scalar_need_nothing(name: str) -> None:
    empty = tensor(0, VOCABULARY)
    assert scratch_bytes(name, (empty, empty, empty), {}) == 0
    assert scratch_bytes(name, (), {}) == 0
    assert scratch_bytes("sort", (tensor(),), {}) == 0
