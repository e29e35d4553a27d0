"""`--pin-kv-cache`: what is written, and what is said of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.errors import UsageError
from mmcalib.options.run import RunOptions
from mmcalib.prediction.predict import fix_kv_cache, pool_evidence
from mmcalib.workflows.run.session import Job
from tests.builders import some
from tests.workflows.memory.test_reserved import FOUR, predicted, reserved_check
from tests.workflows.rehearsals import LATE, answering, deepstack, rehearsed

MIB = 1 << 20


def test_it_is_rehearsed_as_it_is_written() -> None:
    asked: list[Mapping[str, Any]] = []
    after = rehearsed(capture_sizes=(1, 2))
    ask = answering(lambda _: rehearsed(kv_cache_tokens=301_000), asked)
    found = some(fix_kv_cache(predicted(FOUR, after), FOUR, ask))
    pool = some(found.pool)
    assert asked == [pool.values]
    assert found.check.status == "pass"
    assert found.check.detail == (
        "KV cache 10.35 GiB of the 10.50 GiB left, 301,000 tokens, graphs of 2 sizes; vLLM then "
        "ignores gpu_memory_utilization"
    )
    late = some(fix_kv_cache(predicted(FOUR, replace(after, division=LATE)), FOUR, ask))
    said = "ignores gpu_memory_utilization, and no longer sizes an extensible KV cache"
    assert said in late.check.detail
    size, sizes = pool_evidence(pool, "L4")
    assert (size.setting, size.value) == ("kv_cache_memory_bytes", 10_602 * MIB)
    assert "vLLM then ignores gpu_memory_utilization" in size.reason
    assert (sizes.setting, sizes.value) == ("cudagraph_capture_sizes", [1, 2])


def test_without_a_gpu_there_is_nothing_to_write() -> None:
    with pytest.raises(UsageError, match="--pin-kv-cache needs --gpu") as caught:
        Job.of(RunOptions(model="some/model", data=["photos"], pin_kv_cache=True), gpu=None)
    assert caught.value.hint == "--gpu L4"


def test_room_is_left_for_what_the_profile_does_not_reserve() -> None:
    """494,403,584 bytes are short there (`test_reserved.py`)."""
    short = predicted(FOUR, deepstack(FOUR.budget))
    left = replace(deepstack(FOUR.budget), spare_bytes=494_403_584)
    pool = some(some(fix_kv_cache(short, FOUR, answering(lambda _: left))).pool)
    assert pool.spared_bytes == 494_403_584
    size, *_ = pool_evidence(pool, "L4")
    assert "and 0.46 GiB for steps above the profile" in size.reason
    check = reserved_check(predicted(FOUR, left), FOUR)
    assert check.status == "pass"
    assert "rehearsed, and 0.46 GiB are free beside the KV cache" in check.detail
    check = reserved_check(predicted(FOUR, replace(left, spare_bytes=300 << 20)), FOUR)
    assert check.status == "warn"
    assert "vLLM does not reserve 0.17 GiB of it" in check.detail


def test_what_is_too_little_is_not_written() -> None:
    short = rehearsed(kv_cache_tokens=None, problem="one request wants more")
    found = some(fix_kv_cache(predicted(FOUR, rehearsed()), FOUR, answering(lambda _: short)))
    assert (found.pool, found.check.status) == (None, "fail")
    assert found.check.detail == "a KV cache of 10.35 GiB is too small: one request wants more"
