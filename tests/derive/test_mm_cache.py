"""The hit curve against a cache that is simulated, and the size that is read from it."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.mm_cache import GIB, CacheSize, HitCurve, choose, hit_curve

# A key's size follows from the key, as an item's bytes follow from its content.
SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[int, int]]:
    sizes = draw(SIZES)
    keys = draw(st.lists(st.integers(0, len(sizes) - 1), max_size=120))
    return [(key, sizes[key]) for key in keys]


def simulated_hits(accesses: Iterable[tuple[int, int]], capacity: int) -> int:
    """Hits of an LRU cache, as vLLM 0.32 has it: what exceeds the whole cache is not stored."""
    held: OrderedDict[int, int] = OrderedDict()
    hits = 0
    for key, nbytes in accesses:
        if key in held:
            held.move_to_end(key)
            hits += 1
        elif nbytes <= capacity:
            while sum(held.values()) + nbytes > capacity:
                held.popitem(last=False)
            held[key] = nbytes
    return hits


@given(traffic(), st.integers(0, 700))
def test_the_curve_is_the_simulation_from_the_largest_item_up(
    accesses: list[tuple[int, int]], capacity: int
) -> None:
    curve = hit_curve(accesses)
    real = simulated_hits(accesses, capacity)
    if capacity >= curve.largest_bytes:
        assert curve.hits_at(capacity) == real
    else:
        assert curve.hits_at(capacity) <= real


@given(traffic())
def test_hits_grow_with_capacity_up_to_all_repeats(accesses: list[tuple[int, int]]) -> None:
    curve = hit_curve(accesses)
    assert list(curve.capacities) == sorted(set(curve.capacities))
    assert list(curve.hits) == sorted(set(curve.hits))
    assert curve.hits_at(0) == 0
    assert curve.hits_at(curve.distinct_bytes) == curve.most_hits
    assert curve.most_hits == len(accesses) - len(dict(accesses))


@given(traffic(), st.floats(0.01, 1))
def test_what_is_chosen_is_the_smallest_that_keeps_its_promise(
    accesses: list[tuple[int, int]], share: float
) -> None:
    curve = hit_curve(accesses)
    needed = share * curve.most_hits
    capacity = curve.capacity_for(-int(-needed // 1))
    assert curve.hits_at(capacity) >= needed - 1e-9
    if capacity:
        assert curve.hits_at(capacity - 1) < needed


def test_where_nothing_repeats_the_cache_is_off() -> None:
    curve = hit_curve([(name, GIB) for name in "abcdef"])
    assert curve == HitCurve(6, 6, 6 * GIB, GIB, (), ())
    assert choose(curve) == CacheSize(0.0, 0.0, 0.0, 0, ram_limited=False)


def test_nothing_at_all_is_no_error() -> None:
    assert hit_curve([]) == HitCurve(0, 0, 0, 0, (), ())
    assert choose(hit_curve([])).mm_processor_cache_gb == 0
    assert hit_curve([]).rate_at(1) == 0.0


def test_an_item_of_every_second_request_needs_room_for_one_neighbour() -> None:
    """A logo between pages that come once: the logo, and the page since it was last seen."""
    accesses = [access for page in range(50) for access in (("logo", 10), (page, 30))]
    curve = hit_curve(accesses)
    assert (curve.capacities, curve.hits) == ((40,), (49,))
    assert curve.rate_at(39) == 0.0
    assert curve.rate_at(40) == 0.49


def test_the_last_few_percent_of_the_hits_are_not_paid_for() -> None:
    """One item comes all the time; the other hundred come back once, after all of them."""
    often = [("often", GIB // 4)] * 4000
    rare = [(number, GIB // 4) for number in range(100)]
    curve = hit_curve([*rare, *often, *rare])
    chosen = choose(curve)
    assert chosen.mm_processor_cache_gb == 0.25
    assert chosen.hit_rate == pytest.approx(3999 / 4200)
    assert chosen.most_hit_rate == pytest.approx(4099 / 4200)
    assert choose(curve, share=1).mm_processor_cache_gb == 25.25


def test_memory_is_counted_as_vllm_counts_it_and_the_budget_holds() -> None:
    accesses = [(number, GIB) for number in range(8)] * 2 + [("small", GIB // 2)] * 2
    curve = hit_curve(accesses)
    free = choose(curve, api_server_count=2, data_parallel_size=2)
    assert (free.mm_processor_cache_gb, free.total_bytes) == (8.0, 32 * GIB)
    assert not free.ram_limited
    tight = choose(curve, api_server_count=2, data_parallel_size=2, ram_budget_bytes=12 * GIB)
    assert (tight.mm_processor_cache_gb, tight.total_bytes) == (0.5, 2 * GIB)
    assert tight.ram_limited
    assert choose(curve, ram_budget_bytes=0).mm_processor_cache_gb == 0


def test_a_cache_holds_the_heaviest_request_or_is_off() -> None:
    """vLLM fails a request whose own new items push out what it repeats (PR 28525)."""
    curve = hit_curve([("logo", GIB // 100)] * 10)
    assert choose(curve).mm_processor_cache_gb == 0.01
    assert choose(curve, largest_request_bytes=3 * GIB).mm_processor_cache_gb == 3
    off = choose(curve, largest_request_bytes=3 * GIB, ram_budget_bytes=5 * GIB)
    assert (off.mm_processor_cache_gb, off.ram_limited) == (0, True)
    once = hit_curve([("a", GIB), ("b", GIB)])
    assert choose(once, largest_request_bytes=2 * GIB).mm_processor_cache_gb == 0


@given(traffic(), st.integers(0, 10**9))
def test_a_size_is_written_up_and_never_above_its_budget(
    accesses: list[tuple[int, int]], budget: int
) -> None:
    large = [(key, nbytes * 3_000_001) for key, nbytes in accesses]
    curve = hit_curve(large)
    chosen = choose(curve, ram_budget_bytes=budget)
    assert chosen.total_bytes <= budget
    assert choose(curve, share=1).hit_rate == choose(curve, share=1).most_hit_rate


def test_a_size_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 bytes"):
        hit_curve([("a", 0)])
    with pytest.raises(ValueError, match="'a' has 1 bytes and 2 bytes"):
        hit_curve([("a", 1), ("a", 2)])
    with pytest.raises(ValueError, match="no cache hits 2 of 2 accesses"):
        hit_curve([("a", 1), ("a", 1)]).capacity_for(2)


@pytest.mark.slow
def test_a_million_accesses_take_seconds() -> None:
    """The aim is 10 s; a machine with other work to do may take three times that."""
    chance = random.Random(7)
    keys = [chance.randrange(300_000) for _ in range(1_000_000)]
    accesses = [(key, 1000 + key % 977 * 1000) for key in keys]
    started = time.perf_counter()
    curve = hit_curve(accesses)
    assert time.perf_counter() - started < 30
    assert curve.most_hits == 1_000_000 - len(set(keys))
