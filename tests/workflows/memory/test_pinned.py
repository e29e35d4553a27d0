"""`--pin-kv-cache`: what is written, and what is said of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.domain.memory import EncoderStep, RehearsedMemory
from mmcalib.errors import UsageError
from mmcalib.options.run import RunOptions
from mmcalib.prediction.predict import fix_kv_cache, pool_evidence
from mmcalib.prediction.worst_steps import RehearseAll
from mmcalib.workflows.run.session import Job
from tests.workflows.memory.test_reserved import FOUR, predicted, reserved_check
from tests.workflows.rehearsals import LATE, deepstack, rehearsed

MIB = 1 << 20


def answers(with_it: RehearsedMemory | None, asked: list[Mapping[str, Any]]) -> RehearseAll:
    def ask(
        every: Sequence[Mapping[str, Any]], steps: tuple[EncoderStep, ...]
    ) -> list[RehearsedMemory | None]:
        asked.extend(every)
        return [with_it] * len(every)

    return ask


def test_it_is_rehearsed_as_it_is_written() -> None:
    asked: list[Mapping[str, Any]] = []
    after = rehearsed(capture_sizes=(1, 2))
    ask = answers(rehearsed(kv_cache_tokens=301_000), asked)
    found = fix_kv_cache(predicted(FOUR, after), FOUR, ask)
    assert found is not None
    assert found.pool is not None
    assert asked == [found.pool.values]
    assert found.check.status == "pass"
    assert found.check.detail == (
        "KV cache 10.35 GiB of the 10.50 GiB left, 301,000 tokens, graphs of 2 sizes; vLLM then "
        "ignores gpu_memory_utilization"
    )
    late = fix_kv_cache(predicted(FOUR, replace(after, division=LATE)), FOUR, ask)
    assert late is not None
    said = "ignores gpu_memory_utilization, and no longer sizes an extensible KV cache"
    assert said in late.check.detail
    size, sizes = pool_evidence(found.pool, "L4")
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
    found = fix_kv_cache(short, FOUR, answers(left, []))
    assert found is not None
    assert found.pool is not None
    assert found.pool.spared_bytes == 494_403_584
    size, *_ = pool_evidence(found.pool, "L4")
    assert "and 0.46 GiB for steps above the profile" in size.reason
    check = reserved_check(predicted(FOUR, left), FOUR)
    assert check.status == "pass"
    assert "rehearsed, and 0.46 GiB are free beside the KV cache" in check.detail
    check = reserved_check(predicted(FOUR, replace(left, spare_bytes=300 << 20)), FOUR)
    assert check.status == "warn"
    assert "vLLM does not reserve 0.17 GiB of it" in check.detail


def test_what_is_too_little_is_not_written() -> None:
    short = rehearsed(kv_cache_tokens=None, problem="one request wants more")
    found = fix_kv_cache(predicted(FOUR, rehearsed()), FOUR, answers(short, []))
    assert found is not None
    assert (found.pool, found.check.status) == (None, "fail")
    assert found.check.detail == "a KV cache of 10.35 GiB is too small: one request wants more"
