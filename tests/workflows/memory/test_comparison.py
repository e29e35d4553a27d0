"""The calibrated configuration beside vLLM's defaults: what counts as worse, and who asked."""

from dataclasses import replace
from typing import Any

import pytest

from mmcalib.checks.catalogue import BETTER, KEEP_DEFAULTS
from mmcalib.checks.memory import comparison_check
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.limits.policy import Policy
from mmcalib.results.memory import ServedTraffic
from tests.report.serving import figures
from tests.workflows.memory.test_reserved import FOUR
from tests.workflows.rehearsals import GIB, rehearsed

CAPPED = replace(FOUR, engine_args={"mm_processor_kwargs": {"max_pixels": 1_003_520}})
NO_START = rehearsed(kv_cache_tokens=None, max_concurrency=None)


def compared(before, after, policy=None, traffic=None, config=CAPPED) -> Any:
    loads = (traffic.default, traffic.calibrated) if traffic and traffic.default else None
    return comparison_check(before, after, loads, config, policy or Policy())


def with_tokens(tokens: int) -> RehearsedMemory:
    at_once = tokens * 12 / 100_000
    return rehearsed(kv_cache_tokens=tokens, kv_cache_bytes=tokens << 12, max_concurrency=at_once)


BEFORE = with_tokens(100_000)


@pytest.mark.parametrize(
    ("tokens", "policy", "more_context", "status"),
    [
        (120_000, Policy(), 0, "pass"),
        (100_000, Policy(), 0, "pass"),
        (99_999, Policy(), 0, "fail"),
        (99_999, Policy(max_num_batched_tokens=8192), 0, "warn"),
        (99_999, Policy(prefer="throughput"), 0, "warn"),
        (120_000, Policy(prefer="throughput"), 0, "pass"),
        # Qwen2.5-Omni-7B on an H100, 994,256 → 994,048 tokens: other items are profiled.
        (99_979, Policy(), 14_824, "pass"),
        (99_800, Policy(), 14_824, "fail"),
    ],
)
def test_less_kv_cache_fails_unless_the_user_asked_for_it(
    tokens, policy, more_context, status
) -> None:
    longer = replace(FOUR.budget, max_model_len=FOUR.budget.max_model_len + more_context)
    after = replace(with_tokens(tokens), budget=FOUR.budget, max_concurrency=12)
    check = compared(replace(BEFORE, budget=longer), after, policy)
    assert (check.id, check.status) == (BETTER, status)


def test_a_token_that_rounding_takes_is_not_missed() -> None:
    assert compared(BEFORE, replace(BEFORE, kv_cache_tokens=99_999)).status == "pass"


def test_a_default_that_does_not_start_is_beaten_and_the_rest_is_another_checks_matter() -> None:
    assert compared(NO_START, with_tokens(10)).status == "pass"
    assert compared(BEFORE, NO_START) is None
    assert compared(None, BEFORE) is None


def test_steps_that_go_beyond_the_reserve_are_worse() -> None:
    """The default leaves some of its reserve, the calibrated one takes more than it has."""
    after = figures(peak_bytes=2 * GIB)
    traffic = ServedTraffic(gpu="L4", calibrated=after, default=figures(), assumptions=[])
    check = compared(BEFORE, with_tokens(120_000), traffic=traffic)
    assert check.status == "fail"
    assert "reserve left under load" in check.detail


@pytest.mark.parametrize(
    ("preemptions", "steps", "batch", "status"),
    [(3, 90, 2048, "pass"), (3, 110, 2048, "fail"), (3, 90, 4096, "fail"), (2, 110, 4096, "pass")],
)
def test_more_preemptions_are_worse_unless_steps_serve_sooner(preemptions, steps, batch, status):
    before = figures().model_copy(update={"preemptions": 2, "steps": 100})
    after = before.model_copy(update={"preemptions": preemptions, "steps": steps})
    traffic = ServedTraffic(gpu="L4", calibrated=after, default=before, assumptions=[])
    budget = FOUR.budget
    started = replace(with_tokens(120_000), budget=replace(budget, max_num_batched_tokens=batch))
    default = replace(BEFORE, budget=replace(budget, max_num_batched_tokens=2048))
    assert compared(default, started, traffic=traffic).status == status


def test_as_good_as_the_defaults_with_nothing_turned_says_to_keep_them() -> None:
    check = compared(BEFORE, with_tokens(100_000), config=FOUR)
    assert (check.id, check.status) == (KEEP_DEFAULTS, "pass")
    assert compared(BEFORE, with_tokens(100_001), config=FOUR).id == BETTER
