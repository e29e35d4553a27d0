"""The processor cache that is sized for the requests, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import assume, example, given
from hypothesis import strategies as st

from mmcalib.checks.check import Check, RemedyStyle
from mmcalib.checks.facts import CheckFacts, Decision
from mmcalib.checks.items import check_large_items
from mmcalib.checks.options import check_processor_cache
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import ImageShape, Shape, VideoShape
from mmcalib.limits.costs import CostTable
from mmcalib.limits.policy import Policy
from mmcalib.limits.processor_cache import SizedCache, UnsizedCache, cache_floor, largest_item_bytes
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, PROCESSOR_CACHES
from mmcalib.text import GIB
from mmcalib.workflows.judging import judge
from mmcalib.workflows.run.document import cache_evidence, cache_report
from tests.builders import expect, some
from tests.workflows.corpora import corpus, decide, path_of
from tests.workflows.fake_host import UNIT, budget, cost, opened

A, B, C = ImageShape(2800, 2800), ImageShape(2800, 1400), ImageShape(1400, 1400)
CLIP = VideoShape(8, 8.0, 1.0, 280, 280)
SLIVER = ImageShape(2010, 10)


def cache_checks(decision: Decision, policy: Policy) -> Iterator[Check]:
    facts = CheckFacts(RemedyStyle.FLAGS, decision, policy)
    return judge((check_processor_cache, check_large_items), facts)


def tensor_bytes(*shapes: Shape) -> int:
    return sum(cost(shape, {}).tensor_bytes for shape in shapes)


def sized(decision: Decision) -> SizedCache:
    return expect(SizedCache, decision.cache)


def reason(decision: Decision) -> str:
    (entry,) = cache_evidence(decision)
    assert entry.value == decision.engine_args["mm_processor_cache_gb"]
    return entry.reason


def test_the_cache_holds_what_comes_again() -> None:
    decision = decide(corpus([], [[A], [B], [A], [B], [A]]))
    cache = sized(decision)
    assert list(cache.curve.capacities) == [tensor_bytes(A, B)]
    assert cache.size.hit_rate == 0.6
    assert round(cache.mm_processor_cache_gb * GIB) >= tensor_bytes(A, B)
    assert round(cache.mm_processor_cache_gb * GIB) - tensor_bytes(A, B) <= GIB / 100 + 1
    assert reason(decision) == (
        "expected hit rate 60.0%; 5 items in 5 requests, an unlimited cache hits 60.0%, "
        "vLLM's 4 GiB 60.0%"
    )
    assert next(cache_evidence(decision)).exemplar == path_of(A)
    found = some(cache_report(decision))
    assert (found.accesses, found.hit_rate, found.max_hit_rate) == (5, 0.6, 0.6)
    assert found.curve == ((tensor_bytes(A, B), 0.6),)


def test_requests_that_vllm_rejects_leave_nothing_in_its_cache() -> None:
    read = corpus([], [[A, B], [A], [SLIVER, C], [C]])
    assert sized(decide(read)).requests == 3
    one = decide(read, Policy(count={"image": 1}))
    assert (sized(one).requests, sized(one).curve.most_hits) == (2, 0)
    none = decide(corpus([], [[A, B]]), Policy(count={"image": 1}))
    stays = "the limits admit no request: the cache stays at vLLM's 4 GiB"
    assert none.cache == UnsizedCache(stays)


def test_the_floor_is_any_request_that_the_limits_admit() -> None:
    """A logo and then a page come, never three large pages."""
    decision = decide(corpus([A, B], [[C], [C], [C, C, C], [C]]), Policy(count={"image": 3}))
    cache = sized(decision)
    largest = decision.plain.dummies["image"].tensor_bytes
    assert cache.curve.largest_request_bytes == tensor_bytes(C) < 3 * largest
    assert round(cache.mm_processor_cache_gb * GIB) >= 3 * largest == cache.floor.nbytes
    assert "at least what the largest allowed request needs, 3 × image of " in reason(decision)


def test_where_vllms_default_is_below_the_floor_the_cache_is_off() -> None:
    """vLLM's 4 GiB fail requests just the same."""
    policy, model = Policy(count={"image": 100}), opened(max_model_len=2_000_000)
    for read in (corpus([A, B]), corpus([], [[A], [A]])):
        decision = decide(read, policy, model)
        assert decision.engine_args["mm_processor_cache_gb"] == 0
        why = reason(decision)
        assert why.startswith("off: ")
        assert "the largest allowed request needs 100 × image of 47.0 MB = 4.38 GiB" in why
    check = next(cache_checks(decide(corpus([A, B]), policy, model), policy))
    assert (check.status, check.remedy.split(",")[0]) == ("warn", "--ram-budget 8.78GiB or more")
    roomy = Policy(count={"image": 100}, ram_budget_bytes=9 * GIB)
    given = decide(corpus([A, B]), roomy, model)
    assert given.engine_args["mm_processor_cache_gb"] == 4.39
    assert "as large as one request needs" in reason(given)
    assert next(cache_checks(given, roomy)).status == "pass"


@example(56_000, 280, 100)
@given(st.integers(1, 60_000), st.integers(1, 60_000), st.integers(4, 16_384))
def test_no_picture_takes_more_than_the_largest_that_is_admitted(
    width: int, height: int, tokens: int
) -> None:
    """Slim ones exceed the cap, by the rule of the Qwen-VL processors."""
    assume(max(width, height) <= 200 * min(width, height))
    kwargs = {"images_kwargs": {"size": {"longest_edge": tokens * UNIT, "shortest_edge": 4 * UNIT}}}
    args = {"limit_mm_per_prompt": {"image": 1}, "mm_processor_kwargs": kwargs}
    plain = budget(opened(), args, build_dummy=True)
    most = largest_item_bytes("image", CostTable(DEFAULT, {}), plain, plain.encoder_budget_tokens)
    assert cost(ImageShape(width, height), kwargs).tensor_bytes <= most


@given(
    st.lists(st.lists(st.sampled_from([A, B, C, CLIP]), max_size=3), max_size=12),
    st.integers(1, 200),
    st.none() | st.integers(0, 40 * GIB),
)
def test_it_never_asks_for_more_than_is_known_to_be_there(
    requests: list[list[Shape]], images: int, ram: int | None
) -> None:
    """No corpus without --ram-budget makes it more than vLLM's 4 GiB; 0 or at least the floor."""
    policy = Policy(count={"image": images}, ram_budget_bytes=ram)
    decision = decide(corpus([A, CLIP], requests), policy)
    gib = decision.engine_args.get("mm_processor_cache_gb", PROCESSOR_CACHE_GIB)
    assert gib <= (PROCESSOR_CACHE_GIB if ram is None else ram / PROCESSOR_CACHES / GIB)
    most, limit = decision.items_per_prompt, decision.budget.encoder_budget_tokens
    floor = cache_floor(most, decision.table, decision.plain, limit)
    assert gib == 0 or gib * GIB >= floor.nbytes


@given(st.lists(st.lists(st.sampled_from([A, B, C, CLIP]), max_size=3), min_size=1, max_size=12))
def test_a_size_holds_every_request_or_is_off(requests: list[list[Shape]]) -> None:
    decision = decide(corpus([A], requests))
    if isinstance(decision.cache, UnsizedCache):
        assert not any(requests)
        return
    size, curve = sized(decision).size, sized(decision).curve
    assert (size.mm_processor_cache_gb == 0) == (curve.most_hits == 0)
    if curve.most_hits:
        assert size.mm_processor_cache_gb * GIB + 1 >= curve.largest_request_bytes
        assert size.hit_rate >= 0.95 * curve.rate_at(math.inf)
    assert len(list(cache_evidence(decision))) == 1


BIG, BIGGER = ImageShape(2800, 2240), ImageShape(2800, 2268)


def large(decision: Decision) -> tuple[str, str, str]:
    check = next(c for c in cache_checks(decision, Policy()) if c.name == "large items at once")
    return check.status, check.detail, check.remedy


def test_large_items_that_wait_for_one_another_are_warned_of() -> None:
    status, detail, remedy = large(decide(corpus([BIG, BIGGER])))
    assert status == "warn"
    assert "2 image items each take over half of the encoder cache (8,100 tokens)" in detail
    assert path_of(BIGGER) in detail
    assert "occupies it for at least 4 steps of 2048 tokens; the next large image waits" in detail
    assert "--max-num-batched-tokens 16200" in remedy


def test_a_folder_has_no_order_and_nothing_is_guessed() -> None:
    decision = decide(corpus([A, B]))
    assert "mm_processor_cache_gb" not in decision.engine_args
    assert list(cache_evidence(decision)) == []
    assert cache_report(decision) is None
    check = next(cache_checks(decision, Policy()))
    assert (check.name, check.status) == ("processor cache size", "skip")
    assert "the cache stays at vLLM's 4 GiB" in check.detail


def test_encoder_decoder_models_have_none() -> None:
    decision = decide(corpus([], [[A], [A]]), model=replace(opened(), encoder_decoder=True))
    assert "mm_processor_cache_gb" not in decision.engine_args
    assert "encoder-decoder" in next(cache_checks(decision, Policy())).detail


def test_a_ram_budget_is_kept_and_said() -> None:
    read = corpus([], [[A], [B], [C], [A], [B], [C], [C]])
    ram_bytes = 12 * GIB // 100
    policy = Policy(ram_budget_bytes=ram_bytes)
    decision = decide(read, policy)
    assert sized(decision).size.total_bytes <= ram_bytes
    check = next(cache_checks(decision, policy))
    assert check.status == "warn"
    assert check.detail.startswith("0.12 GiB are allowed, at most 0.10 GiB of RAM in both")
    assert check.detail.endswith("57.1% would take 0.08 GiB per process")
    assert check.remedy.startswith("--ram-budget 0.16GiB")
    enough = decide(read, Policy(ram_budget_bytes=16 * GIB // 100 + 1))
    assert sized(enough).size.hit_rate == sized(decision).size.wanted_hit_rate
    off = decide(read, Policy(ram_budget_bytes=0))
    assert off.engine_args["mm_processor_cache_gb"] == 0
    assert "0 GiB per process are allowed, but the largest allowed request needs" in reason(off)
