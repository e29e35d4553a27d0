"""The hit curve against a cache that is simulated, and the size that is read from it."""

import math
import random
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.shapes import ImageShape, Modality, VideoShape
from mmcalib.limits.costs import CostTable
from mmcalib.limits.processor_cache import (
    Recency,
    choose_cache_size,
    cut_to_context,
    hit_curve,
    largest_item_bytes,
)
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, PROCESSOR_CACHES
from mmcalib.text import GIB
from tests import builders
from tests.limits.costed import cost, table

Request = list[tuple[int, int]]

# A key's size follows from the key, as an item's bytes follow from its content.
SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@st.composite
def traffic(draw: st.DrawFn) -> list[Request]:
    """Requests of one to four items, of which some may be named twice."""
    sizes = draw(SIZES)
    key = st.integers(0, len(sizes) - 1)
    requests = draw(st.lists(st.lists(key, min_size=1, max_size=4), max_size=60))
    return [[(key, sizes[key]) for key in request] for request in requests]


def simulated_hits(requests: Iterable[Request], capacity: int) -> int | None:
    """Hits of vLLM 0.32's LRU cache, an item per request counted once: look up all items, touch
    the known ones, then fetch or store each in order, unless it exceeds the whole cache. None: a
    known one was evicted meanwhile.
    """
    held: OrderedDict[int, int] = OrderedDict()
    hits = 0
    for request in requests:
        known = {key for key, _ in request if key in held}
        for key, _ in request:
            if key in held:
                held.move_to_end(key)
        for key, nbytes in request:
            if key in held:
                held.move_to_end(key)
            elif key in known:
                return None
            elif nbytes <= capacity:
                while sum(held.values()) + nbytes > capacity:
                    held.popitem(last=False)
                held[key] = nbytes
        hits += len(known)
    return hits


@given(traffic(), st.integers(0, 700))
def test_the_curve_is_the_simulation_from_the_largest_request_up(requests, more: int) -> None:
    curve = hit_curve(requests)
    capacity = curve.largest_request_bytes + more
    assert curve.hits_at(capacity) == simulated_hits(requests, capacity)


@given(traffic(), st.floats(0.01, 1))
def test_what_is_chosen_is_the_smallest_that_keeps_its_promise(requests, share: float) -> None:
    curve = hit_curve(requests)
    needed = share * curve.most_hits
    capacity = curve.capacity_for(-int(-needed // 1))
    assert curve.hits_at(capacity) >= needed - 1e-9
    if capacity:
        assert curve.hits_at(capacity - 1) < needed


def test_what_only_one_request_repeats_is_no_hit() -> None:
    """vLLM looks a request's items up before it stores any: it processes them both."""
    curve = hit_curve([[("a", 10), ("a", 10), ("b", 5)], [("c", 10), ("c", 10)]])
    assert (curve.accesses, curve.distinct, curve.most_hits) == (3, 3, 0)
    assert curve.largest_request_bytes == 15


def test_the_last_few_percent_of_the_hits_are_not_paid_for() -> None:
    """One item comes all the time; the other hundred come back once, after all of them."""
    often: list[tuple[Hashable, int]] = [("often", GIB // 4)] * 4000
    rare = [(number, GIB // 4) for number in range(100)]
    curve = hit_curve([access] for access in [*rare, *often, *rare])
    chosen = choose_cache_size(curve)
    assert chosen.mm_processor_cache_gb == 0.25
    assert chosen.hit_rate == pytest.approx(3999 / 4200)
    assert curve.rate_at(math.inf) == pytest.approx(4099 / 4200)


@given(traffic(), st.integers(0, 10**9), st.none() | st.integers(0, 10**10))
def test_a_size_is_0_or_between_the_floor_and_what_is_allowed(requests, floor: int, budget) -> None:
    large = [[(key, nbytes * 30_000_001) for key, nbytes in request] for request in requests]
    found = choose_cache_size(hit_curve(large), floor, ram_budget_bytes=budget)
    assert found.mm_processor_cache_gb == 0 or found.mm_processor_cache_gb * GIB >= floor
    allowed = PROCESSOR_CACHE_GIB * GIB if budget is None else budget / PROCESSOR_CACHES
    assert found.mm_processor_cache_gb * GIB <= allowed


@pytest.mark.slow
def test_a_million_accesses_take_seconds() -> None:
    """The aim is 10 s; two programs on one core may take three times that."""
    chance = random.Random(7)
    keys = [chance.randrange(300_000) for _ in range(1_000_000)]
    started = time.process_time()
    curve = hit_curve([(key, 1000 + key % 977 * 1000)] for key in keys)
    assert time.process_time() - started < 30
    assert curve.most_hits == 1_000_000 - len(set(keys))


TOKEN_BYTES = 4704
CLIP = VideoShape(32, 8.0, 4.0, 280, 280)


def clips_of(nbytes: int) -> CostTable:
    return table(cost(CLIP, 1600, tensor_bytes=nbytes))


def budget(most: Mapping[Modality, int]) -> Budget:
    """vLLM's own largest items; its dummies have as many tokens."""
    dummies = {m: Dummy(n, n * TOKEN_BYTES, {}) for m, n in most.items()}
    return builders.budget(20_000, most, dummies=dummies)


def test_an_item_of_the_corpus_that_takes_more_than_the_dummy_counts() -> None:
    """Processors that pad: a sliver of few tokens, and many bytes."""
    sliver = table(cost(ImageShape(100, 100), 16, tensor_bytes=100_000_000))
    assert largest_item_bytes("image", sliver, budget({"image": 16_384}), 20_000) == 100_000_000


def test_of_a_video_whatever_the_encoder_cache_admits() -> None:
    """Qwen2-VL's dummy has 14 frames, and its loader keeps more."""
    usual, plain = clips_of(1600 * TOKEN_BYTES), budget({"video": 700})
    assert largest_item_bytes("video", usual, plain, 20_000) == 20_000 * TOKEN_BYTES
    padded = clips_of(1600 * 2 * TOKEN_BYTES)
    assert largest_item_bytes("video", padded, plain, 20_000) == 40_000 * TOKEN_BYTES


def test_a_dummy_that_the_size_hints_shrank_is_scaled_to_the_largest_item() -> None:
    plain = replace(budget({"image": 16_384}), dummies={"image": Dummy(324, 324 * TOKEN_BYTES, {})})
    assert largest_item_bytes("image", table(), plain, 20_000) == 16_384 * TOKEN_BYTES


def test_a_limit_of_999_is_no_more_than_what_begins_within_the_context() -> None:
    """32,768 tokens: two largest images fill it, and nothing begins behind them."""
    plain = budget({"image": 16_384, "video": 700})
    unsaid: dict[Modality, int] = {"image": 999, "video": 1, "audio": 999}
    assert cut_to_context(unsaid, table(), plain, 20_000) == {"image": 2, "video": 0, "audio": 999}
    longer = replace(plain, max_model_len=32_769)
    assert cut_to_context(unsaid, table(), longer, 20_000) == {"image": 3, "video": 0, "audio": 999}


def test_what_takes_most_bytes_for_its_tokens_fills_the_context_first() -> None:
    plain = budget({"image": 16_384, "video": 700})
    heavy = clips_of(1600 * 2 * TOKEN_BYTES)
    found = cut_to_context({"image": 4, "video": 1}, heavy, plain, 20_000)
    assert found == {"image": 1, "video": 1}


def test_sizes_of_moved_items_add_up() -> None:
    recency, plain = Recency(), list(range(5000))
    for nbytes in plain:
        recency.append(nbytes)
    for position in range(0, 5000, 7):
        recency.move_to_end(position)
        plain.append(plain[position])
        plain[position] = 0
    for position in range(0, len(plain) + 1, 13):
        assert recency.bytes_since(position) == sum(plain[position:])
