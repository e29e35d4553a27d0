"""The configuration that leaves most KV cache, and remedies where the first does not serve."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mmcalib.checks.facts import Decision
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.limits.policy import Policy
from mmcalib.remedies.memory import Remedy
from tests.builders import some
from tests.workflows.corpora import corpus, decide

PAGE = ImageShape(2800, 2240)  # 8,000 tokens
SOUND = AudioShape(480_000, 16_000)


def batch(decision: Decision) -> int:
    found: int = decision.engine_args["max_num_batched_tokens"]
    return found


def less_for_large_steps(decision: Decision) -> int:
    return 100_000 - 10 * batch(decision)


def test_a_step_is_rounded_down_where_that_leaves_more_kv_cache() -> None:
    up = decide(corpus([SOUND]))
    item = up.budget.max_tokens_per_item["audio"]
    assert 2048 / item > 1
    assert batch(up) == -(-2048 // item) * item
    down = decide(corpus([SOUND]), kv_tokens=less_for_large_steps)
    assert batch(down) == 2048 // item * item
    assert down.adequacy.passes


@pytest.mark.parametrize(
    ("own", "reserved", "turned"),
    [(97_999, True, True), (98_000, True, False), (98_000, False, True), (0, True, True)],
)
def test_less_than_two_per_cent_of_the_kv_cache_turn_no_option(own: int, reserved, turned) -> None:
    """Unless vLLM's own items and step are the ones that its startup does not reserve."""
    found = decide(
        corpus([PAGE]),
        kv_tokens=lambda one: 100_000 if one.setting.engine_args else own,
        reserves=lambda one: reserved or bool(one.setting.engine_args),
    )
    assert bool(found.setting.engine_args) == turned
    assert (found.rounding == "none") != turned


@pytest.mark.parametrize(
    ("default_mib", "default_tokens", "kept_tokens", "most", "share"),
    [
        (1_500, 50_000, 75_000, 8_000, 0.9),
        (1_500, 50_000, 51_000, 16_384, None),  # less than 2% more than with vLLM's own items
        (1_500, 60_000, 75_000, 8_000, 0.9),  # which hold less than by default
        (1_500, 60_000, 59_999, 8_000, None),
        (149, 50_000, 75_000, 8_000, None),  # nothing to lose
    ],
)
def test_a_reserve_is_not_spent_for_kv_cache(
    default_mib, default_tokens, kept_tokens, most: int, share: float | None
) -> None:
    """A cap at the largest item leaves nothing of it under load: a little less for vLLM does."""

    def largest(one: Decision) -> int:
        return one.budget.max_tokens_per_item["image"]

    found = decide(
        corpus([PAGE]),
        kv_tokens=lambda one: kept_tokens if one.remedies else 100_000 - 3 * largest(one),
        default_kv_tokens=default_tokens,
        spends_reserve=lambda one: (
            default_mib >= 150 and not one.remedies and largest(one) <= 8_000
        ),
        keep_reserve=lambda one: Remedy("", {"gpu_memory_utilization": 0.9}, "KV cache", "less"),
    )
    assert largest(found) == most
    assert found.engine_args.get("gpu_memory_utilization") == share


def test_one_that_serves_the_corpus_worse_than_the_defaults_is_passed_over() -> None:
    def decided(*worse: int) -> Decision:
        return decide(
            corpus([SOUND]),
            kv_tokens=less_for_large_steps,
            default_kv_tokens=70_000,
            serves_worse=lambda one: batch(one) in worse,
        )

    first = decided()
    second = decided(batch(first))
    assert batch(second) > 2048 > batch(first)
    third = decided(batch(first), batch(second))
    assert (third.rounding, batch(third)) == ("none", 2048), "vLLM's own step"
    assert first.setting == second.setting == third.setting, "the quality is the same"
    assert batch(decided(batch(first), batch(second), 2048)) == batch(first), "none does"


def test_vllms_own_largest_items_stay_where_every_size_hint_serves_worse() -> None:
    """A hint shrinks vLLM's encoder cache: fewer requests wait in it, more are preempted."""

    def decided(default_kv_tokens: int) -> Decision:
        return decide(
            corpus([SOUND]),
            kv_tokens=lambda one: 80_000 if one.hints else 70_000,
            default_kv_tokens=default_kv_tokens,
            serves_worse=lambda one: bool(one.hints),
        )

    found = decided(70_000)
    assert (found.rounding, batch(found), found.hints) == ("none", 2048, {})
    assert found.counts["audio"].value == 1
    assert "preempted" in found.refused_hints["audio"]
    assert decided(70_001).hints, "less KV cache than with the defaults is never taken"


def test_a_cap_below_the_largest_item_is_not_made_up_for_by_a_larger_step() -> None:
    """A capped profile item may be smaller than the corpus' largest, which needs its own step."""
    found = decide(corpus([PAGE]))
    largest = some(found.table.largest())
    assert found.budget.max_tokens_per_item["image"] >= largest.embeds
    assert batch(found) == 2048
    assert replace(found, rounding="none").adequacy.ratio >= 1


LOWER = Remedy("", {"gpu_memory_utilization": 0.8}, "KV cache", "leaves memory")
RAISED = Remedy("", {"gpu_memory_utilization": 0.95}, "nothing", "free memory")
FEWER = Remedy("", {"max_num_seqs": 8}, "speed", "fewer at once")
SHORTER = Remedy("", {"max_model_len": 16_384}, "requests", "the longest that fits")


def offers(*remedies: Remedy) -> Callable[[Decision], Iterator[Remedy]]:
    """Offer these, each once in a configuration."""
    return lambda decision: (one for one in remedies if one not in decision.remedies)


def remedied(*remedies: Remedy, **said: Any) -> Decision:
    """Decide for a page that is out of memory without one of these."""
    said = {"rejects": lambda one: "" if one.remedies else "out of memory", **said}
    return decide(corpus([PAGE]), remedies=offers(*remedies), **said)


def test_a_configuration_that_does_not_serve_gets_the_remedy_that_costs_least() -> None:
    found = remedied(RAISED, LOWER, FEWER, kv_tokens=lambda one: 100_000)
    assert found.remedies == (RAISED,)
    assert found.engine_args["gpu_memory_utilization"] == 0.95
    assert found.retention()["image"].items_smaller == 0


def test_of_remedies_at_one_cost_the_one_with_most_kv_cache_is_applied() -> None:
    larger = replace(LOWER, changes={"max_num_batched_tokens": 16_384})

    def tokens(decision: Decision) -> int:
        return 50_000 if decision.engine_args.get("gpu_memory_utilization") else 60_000

    for order in ((LOWER, larger), (larger, LOWER)):
        assert remedied(*order, kv_tokens=tokens).remedies == (larger,)
    found = remedied(LOWER, FEWER, slows=lambda one: LOWER in one.remedies)
    assert found.remedies == (FEWER,), "for a KV cache so small, requests would be preempted"


def test_several_remedies_are_applied_where_one_is_not_enough() -> None:
    wanted = {**LOWER.changes, **SHORTER.changes}

    def rejects(decision: Decision) -> str:
        return "" if wanted.items() <= decision.engine_args.items() else "too large"

    offered = (LOWER, FEWER, SHORTER)
    found = remedied(*offered, rejects=rejects, kv_tokens=lambda one: 100_000)
    assert set(map(id, found.remedies)) == {id(LOWER), id(SHORTER)}
    assert found.budget.max_model_len == 16_384
    assert found.forced == ""


def test_another_candidate_is_preferred_to_a_remedy_that_leaves_less_kv_cache() -> None:
    """A candidate with whole items may hold where a model's own step is not reserved."""

    def tokens(decision: Decision, left: int) -> int:
        return left if decision.remedies else 100_000 - batch(decision)

    for left, remedies in ((50_000, ()), (99_999, (LOWER,))):
        found = decide(
            corpus([SOUND]),
            kv_tokens=partial(tokens, left=left),
            default_kv_tokens=100_000,
            rejects=lambda one: "" if batch(one) != 2048 or one.remedies else "short",
            remedies=offers(LOWER),
        )
        assert found.remedies == remedies


def test_detail_is_lost_only_where_no_remedy_serves() -> None:
    def rejects(decision: Decision) -> str:
        largest = decision.table.largest()
        return "" if largest and largest.tokens < 4_000 else "too large"

    found = remedied(RAISED, rejects=rejects, kv_tokens=lambda one: 100_000)
    assert (found.forced, found.forced_by, found.remedies) == ("too large", "memory", ())
    nothing = decide(
        corpus([PAGE]),
        Policy(prefer="throughput"),
        rejects=lambda one: "never",
        remedies=offers(LOWER, FEWER),
        kv_tokens=lambda one: 100_000,
    )
    assert (nothing.remedies, nothing.forced) == ((), "")
