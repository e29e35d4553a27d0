from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch, which comes with vLLM: make setup")

from mmcalib.child.rehearsal.allocator import (
    AllocatorSettings,
    CachingAllocator,
    ExpandingAllocator,
    parse_settings,
    settings_from_environment,
)
from mmcalib.child.rehearsal.ledger import Ledger
from mmcalib.errors import UsageError
from mmcalib.models.gpus import find_gpu
from mmcalib.text import MIB


@pytest.mark.parametrize(
    ("requests", "blocks", "reserved"),
    [
        # In steps of 512 bytes, and a segment for the first.
        ([0], [0], 0),
        ([1], [512], 2 * MIB),
        ([512], [512], 2 * MIB),
        ([513], [1024], 2 * MIB),
        ([MIB], [MIB], 2 * MIB),
        ([MIB + 1], [MIB + 512], 20 * MIB),
        ([10 * MIB], [10 * MIB], 10 * MIB),
        ([10 * MIB + 1], [10 * MIB + 512], 12 * MIB),
        ([101 * MIB], [102 * MIB], 102 * MIB),
        # A large remainder of at most one mebibyte stays with its block.
        ([11 * MIB, 13 * MIB - 512], [12 * MIB, 13 * MIB - 512], 26 * MIB),
        # A small remainder is split from 512 bytes on.
        ([MIB, MIB - 512, 512], [MIB, MIB - 512, 512], 2 * MIB),
    ],
)
def test_requests_take_blocks_and_segments(requests, blocks, reserved: int) -> None:
    allocator = CachingAllocator()
    taken = [allocator.allocate(nbytes) for nbytes in requests]
    assert [allocator.size_of(one) if one else 0 for one in taken] == blocks
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (sum(blocks), reserved)
    for one in taken:
        allocator.free(one)
    assert allocator.allocated_bytes == 0


def test_weights_count_as_more_than_their_bytes() -> None:
    """A log has 15.6271 GiB for Qwen2.5-VL-7B whose tensors are 15.568: 0.38 % of remainders."""
    allocator = CachingAllocator()
    mlp, attention, norm = 18944 * 3584 * 2, 3584 * 4608 * 2 + 4608 * 2, 3584 * 2
    layer = [2 * mlp, mlp, attention, 3584 * 3584 * 2, norm, norm]
    for nbytes in layer * 28:
        allocator.allocate(nbytes)
    tensors = 28 * sum(layer)
    assert 1.001 < allocator.allocated_bytes / tensors < 1.01
    assert allocator.reserved_bytes / tensors < 1.02


def test_the_best_fit_is_the_smallest_then_the_lowest() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (40, 30, 30)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(30 * MIB) == blocks[1]
    assert allocator.allocate(25 * MIB) == blocks[2]


def test_a_freed_block_merges_with_both_neighbours() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert allocator.reserved_bytes == 20 * MIB
    for index in (0, 2, 1, 3):
        allocator.free(blocks[index])
    assert allocator.allocate(20 * MIB) == blocks[0]
    assert allocator.reserved_bytes == 20 * MIB


def test_empty_cache_returns_only_wholly_free_segments() -> None:
    allocator = CachingAllocator()
    first, second = allocator.allocate(5 * MIB), allocator.allocate(5 * MIB)
    allocator.free(allocator.allocate(64 * MIB))
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_peaks_are_of_blocks_and_segments_and_start_again() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(101 * MIB))
    allocator.empty_cache()
    assert allocator.allocated_peak_bytes == 102 * MIB
    assert allocator.reserved_peak_bytes == 102 * MIB
    allocator.reset_peak()
    assert allocator.allocated_peak_bytes == allocator.reserved_peak_bytes == 0


class TestMaxSplit:
    """vLLM 0.32 sets the limit of 20 MiB while it loads and profiles."""

    @pytest.mark.parametrize(
        ("freed", "asked", "size", "reserved"),
        [
            pytest.param(20, 12 * MIB, 12, 32, id="blocks at the limit are for no smaller request"),
            pytest.param(5, 5 * MIB, 5, 40, id="nor is a freed segment of twenty mebibytes"),
            pytest.param(18, 12 * MIB, 12, 18, id="a smaller block is split as ever"),
            pytest.param(60, 40 * MIB + 512, 60, 60, id="an oversize request takes a block whole"),
            pytest.param(60, 40 * MIB, 40, 100, id="but none that is twenty mebibytes larger"),
        ],
    )
    def test_the_block_of_a_request(self, freed: int, asked: int, size: int, reserved: int) -> None:
        allocator = CachingAllocator(max_split_bytes=20 * MIB)
        allocator.free(allocator.allocate(freed * MIB))
        assert allocator.size_of(allocator.allocate(asked)) == size * MIB
        assert allocator.reserved_bytes == reserved * MIB

    def test_an_oversize_request_keeps_what_its_new_segment_has_left(self) -> None:
        nbytes = 3584 * 3584 * 2  # 24.5 MiB, a 7B model's attention output
        free = CachingAllocator()
        assert free.size_of(free.allocate(nbytes)) == nbytes
        limited = CachingAllocator(max_split_bytes=20 * MIB)
        assert limited.size_of(limited.allocate(nbytes)) == 26 * MIB

    def test_lifted_it_no_longer_matters(self) -> None:
        allocator = CachingAllocator(max_split_bytes=20 * MIB)
        allocator.free(allocator.allocate(60 * MIB))
        allocator.max_split_bytes = None
        allocator.allocate(12 * MIB)
        assert allocator.reserved_bytes == 60 * MIB


class TestExpanding:
    """Many servers set expandable_segments:True."""

    def test_no_block_is_given_whole_for_the_little_that_is_left_of_it(self) -> None:
        nbytes = 3584 * 3584 * 2  # 24.5 MiB, which vLLM's limit makes 26 of without it
        allocator = ExpandingAllocator(max_split_bytes=20 * MIB)
        assert allocator.size_of(allocator.allocate(nbytes)) == nbytes
        assert allocator.size_of(allocator.allocate(11 * MIB + 512)) == 11 * MIB + 512

    def test_pages_are_added_where_the_segment_ends(self) -> None:
        allocator = ExpandingAllocator()
        first = allocator.allocate(15 * MIB)
        second = allocator.allocate(15 * MIB)
        assert second == first + 15 * MIB
        assert allocator.reserved_bytes == 40 * MIB
        allocator.allocate(1)
        assert allocator.reserved_bytes == 42 * MIB

    def test_a_larger_request_grows_out_of_what_was_freed_before_it(self) -> None:
        allocator = ExpandingAllocator()
        allocator.free(allocator.allocate(60 * MIB))
        allocator.allocate(100 * MIB)
        assert allocator.reserved_bytes == 100 * MIB

    def test_pages_that_lie_wholly_in_free_blocks_are_returned(self) -> None:
        allocator = ExpandingAllocator()
        kept = [allocator.allocate(30 * MIB), allocator.allocate(70 * MIB)]
        allocator.allocate(5 * MIB)
        allocator.free(kept[1])  # From 30 to 100 MiB: pages from 40 on.
        allocator.empty_cache()
        assert allocator.reserved_bytes == 120 * MIB - 60 * MIB

    def test_and_are_mapped_again_from_the_lowest_on(self) -> None:
        allocator = ExpandingAllocator()
        hole = allocator.allocate(60 * MIB)
        allocator.allocate(20 * MIB)
        allocator.free(hole)
        allocator.empty_cache()
        assert allocator.reserved_bytes == 20 * MIB
        assert allocator.allocate(25 * MIB) == hole
        assert allocator.reserved_bytes == 60 * MIB

    def test_what_could_grow_counts_as_large_as_it_could_be(self) -> None:
        allocator = ExpandingAllocator()
        hole = allocator.allocate(40 * MIB)
        allocator.allocate(20 * MIB)
        end = allocator.allocate(30 * MIB)
        allocator.free(hole)
        allocator.free(end)
        assert allocator.allocate(25 * MIB) == hole


LIMIT = "max_split_size_mb:512"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", AllocatorSettings()),
        ("max_split_size_mb:20", AllocatorSettings(20 * MIB)),
        (f"expandable_segments:False, {LIMIT}", AllocatorSettings(512 * MIB, expandable=False)),
        (f"expandable_segments:True,{LIMIT}", AllocatorSettings(512 * MIB, expandable=True)),
        ("pinned_use_background_threads:True,backend:native", AllocatorSettings()),
    ],
)
def test_settings(text: str, found: AllocatorSettings) -> None:
    assert parse_settings(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:19",
        "expandable_segments:1",
        "backend:cudaMallocAsync",
        "max_split_size_mb:20,roundup_power2_divisions:[256:1,512:2,>:8]",
    ],
)
def test_settings_that_are_not_replayed(text: str) -> None:
    with pytest.raises(UsageError):
        parse_settings(text)


def test_the_newer_variable_wins() -> None:
    both = {"PYTORCH_CUDA_ALLOC_CONF": LIMIT, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert settings_from_environment(both) == AllocatorSettings(expandable=True)
    assert settings_from_environment({"PYTORCH_CUDA_ALLOC_CONF": LIMIT}) == AllocatorSettings(
        512 * MIB
    )
    assert settings_from_environment({}) == AllocatorSettings()


def test_a_ledger_keeps_what_its_process_was_started_with() -> None:
    ledger = Ledger(find_gpu("H100-80G"), AllocatorSettings(512 * MIB, expandable=True))
    ledger.set(parse_settings("max_split_size_mb:20"))
    assert isinstance(ledger.allocator, ExpandingAllocator)
    assert ledger.allocator.max_split_bytes == 20 * MIB
    with pytest.raises(UsageError, match="expandable_segments:False"):
        ledger.set(parse_settings("expandable_segments:False"))
    ledger.clear()
    assert isinstance(ledger.allocator, ExpandingAllocator)
    assert ledger.allocator.max_split_bytes == 512 * MIB


SIZES = st.one_of(
    st.integers(1, 2 * MIB), st.integers(MIB, 12 * MIB), st.integers(9 * MIB, 80 * MIB)
)
LIMITS = st.sampled_from([None, 20 * MIB, 40 * MIB])
STEPS = st.lists(st.tuples(st.sampled_from("aaaffel"), SIZES, LIMITS), max_size=60)


@pytest.mark.parametrize("kind_of_allocator", [CachingAllocator, ExpandingAllocator])
@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_happens_the_books_balance(kind_of_allocator, steps) -> None:
    allocator = kind_of_allocator()
    live: dict[int, int] = {}
    for kind, nbytes, limit in steps:
        if kind == "a":
            live[allocator.allocate(nbytes)] = nbytes
        elif kind == "f" and live:
            address = sorted(live)[nbytes % len(live)]
            del live[address]
            allocator.free(address)
        elif kind == "e":
            allocator.empty_cache()
        elif kind == "l":
            allocator.max_split_bytes = limit
        spans = sorted((address, allocator.size_of(address)) for address in live)
        assert all(left + size <= right for (left, size), (right, _) in pairwise(spans))
        assert all(allocator.size_of(address) >= asked for address, asked in live.items())
        assert allocator.allocated_bytes == sum(size for _, size in spans)
        assert allocator.allocated_bytes <= allocator.reserved_bytes
        assert allocator.allocated_bytes <= allocator.allocated_peak_bytes
        idle = sorted(allocator._idle)
        for block in (allocator._idle[address] for address in idle):
            assert block.after is None or block.after.address in live or not block.after.mapped
    for address in live:
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.allocated_bytes == allocator.reserved_bytes == 0
