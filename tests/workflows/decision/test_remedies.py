"""Remedies that `run` applies where its first choice does not serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from mmcalib.checks.facts import Applied, Decision
from mmcalib.derive.policy import Policy
from mmcalib.domain.shapes import AudioShape, ImageShape
from tests.workflows.corpora import corpus, decide

PAGE = ImageShape(2800, 2240)  # 8,000 tokens
SOUND = AudioShape(480_000, 16_000)
LOWER = Applied({"gpu_memory_utilization": 0.8}, "KV cache", "leaves memory")
RAISED = Applied({"gpu_memory_utilization": 0.95}, "nothing", "free memory")
FEWER = Applied({"max_num_seqs": 8}, "speed", "fewer at once")
SHORTER = Applied({"max_model_len": 16_384}, "requests", "the longest that fits")


def lacks(**wanted: Any) -> Callable[[Decision], str]:
    """Reject what has not all these engine arguments."""

    def rejects(decision: Decision) -> str:
        args = decision.engine_args
        return "" if all(args.get(k) == v for k, v in wanted.items()) else "too large"

    return rejects


def offers(*remedies: Applied) -> Callable[[Decision], Iterator[Applied]]:
    """Offer these, each once in a configuration."""
    return lambda decision: (one for one in remedies if one not in decision.remedies)


def test_a_configuration_that_does_not_serve_gets_the_remedy_that_costs_least() -> None:
    found = decide(
        corpus([PAGE]),
        rejects=lambda one: "" if one.remedies else "out of memory",
        remedies=offers(RAISED, LOWER, FEWER),
        kv_tokens=lambda one: 100_000,
    )
    assert found.remedies == (RAISED,)
    assert found.engine_args["gpu_memory_utilization"] == 0.95
    assert found.retention()["image"].items_smaller == 0


def test_of_remedies_at_one_cost_the_one_with_most_kv_cache_is_applied() -> None:
    larger = replace(LOWER, values={"max_num_batched_tokens": 16_384})

    def tokens(decision: Decision) -> int:
        return 50_000 if decision.engine_args.get("gpu_memory_utilization") else 60_000

    for order in ((LOWER, larger), (larger, LOWER)):
        found = decide(
            corpus([PAGE]),
            rejects=lambda one: "" if one.remedies else "out of memory",
            remedies=offers(*order),
            kv_tokens=tokens,
        )
        assert found.remedies == (larger,)


def test_several_remedies_are_applied_where_one_is_not_enough() -> None:
    found = decide(
        corpus([PAGE]),
        rejects=lacks(gpu_memory_utilization=0.8, max_model_len=16_384),
        remedies=offers(LOWER, FEWER, SHORTER),
        kv_tokens=lambda one: 100_000,
    )
    assert set(map(id, found.remedies)) == {id(LOWER), id(SHORTER)}
    assert found.budget.max_model_len == 16_384
    assert found.forced == ""


def test_another_candidate_is_preferred_to_a_remedy_that_leaves_less_kv_cache() -> None:
    """Of a model whose own step is not reserved, one with whole items may hold."""

    def step(decision: Decision) -> int:
        found: int = decision.engine_args["max_num_batched_tokens"]
        return found

    def tokens(decision: Decision, left: int) -> int:
        return left if decision.remedies else 100_000 - step(decision)

    for left, remedies in ((50_000, ()), (99_999, (LOWER,))):
        found = decide(
            corpus([SOUND]),
            kv_tokens=partial(tokens, left=left),
            default_kv_tokens=100_000,
            rejects=lambda one: "" if step(one) != 2048 or one.remedies else "short",
            remedies=offers(LOWER),
        )
        assert found.remedies == remedies


def test_detail_is_lost_only_where_no_remedy_serves() -> None:
    def rejects(decision: Decision) -> str:
        largest = decision.table.largest()
        return "" if largest and largest.tokens < 4_000 else "too large"

    found = decide(
        corpus([PAGE]), rejects=rejects, remedies=offers(RAISED), kv_tokens=lambda one: 100_000
    )
    assert (found.forced, found.forced_by, found.remedies) == ("too large", "memory", ())
    nothing = decide(
        corpus([PAGE]),
        Policy(prefer="throughput"),
        rejects=lambda one: "never",
        remedies=offers(LOWER, FEWER),
        kv_tokens=lambda one: 100_000,
    )
    assert (nothing.remedies, nothing.forced) == ((), "")
