"""`--pin-kv-cache`: what is written, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.derive.demand import Shortfall, WorstStep
from mmcalib.domain.memory import EncoderStep, RehearsedMemory
from mmcalib.errors import UsageError
from mmcalib.memory.checks import predicted_shortfall, reserved_check
from mmcalib.memory.predict import fix_kv_cache, pool_evidence
from mmcalib.memory.worst_steps import RehearseAll, shrink_kv_cache
from mmcalib.options.run import RunOptions
from mmcalib.workflows.run.session import Job
from tests.workflows.memory.test_reserved import FOUR, config_of, predicted
from tests.workflows.rehearsals import GIB, deepstack, limits, rehearsed

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
    served = predicted(FOUR, left)
    check = reserved_check(served, FOUR, allow_under_reserve=False)
    assert check is not None
    assert check.status == "pass"
    assert "rehearsed, and 0.46 GiB are free beside the KV cache" in check.detail
    less = predicted(FOUR, replace(left, spare_bytes=300 << 20))
    check = reserved_check(less, FOUR, allow_under_reserve=False)
    assert check is not None
    assert check.status == "fail"


def test_a_smaller_kv_cache_is_a_cure_where_requests_still_fit() -> None:
    before = predicted(FOUR, deepstack(FOUR.budget))
    short = predicted_shortfall(before, FOUR)
    assert short is not None
    assert before.calibrated is not None
    fits = replace(deepstack(FOUR.budget), spare_bytes=494_403_584)
    asked: list[Mapping[str, Any]] = []
    cure = shrink_kv_cache(short, before.calibrated, FOUR, answers(fits, asked))
    assert cure is not None
    size = cure.engine.kv_cache_memory_bytes
    assert size is not None
    assert asked[0]["kv_cache_memory_bytes"] == size
    assert size < before.calibrated.kv_cache_bytes - short.nbytes
    ends = replace(fits, kv_cache_tokens=None)
    assert shrink_kv_cache(short, before.calibrated, FOUR, answers(ends, [])) is None


def test_items_that_take_more_than_half_of_the_cache_come_from_fewer_sequences() -> None:
    """256 short sounds, each padded to 48 MiB, beside a cache of 4 GiB and a quarter reserved."""
    many = limits(2_250, 256, item=750, modality="audio")
    sounds = config_of(many, modality="audio")
    short = Shortfall(
        GIB // 4, WorstStep("audio", 1_792, 12 * GIB, items=256, exemplar="punch.wav"), 2 * GIB
    )
    asked: list[Mapping[str, Any]] = []
    roomy, tight = rehearsed(kv_cache_bytes=30 * GIB), rehearsed(kv_cache_bytes=4 * GIB)
    shrink_kv_cache(short, tight, sounds, answers(None, asked))
    assert asked[0]["max_num_seqs"] == 48
    asked.clear()
    shrink_kv_cache(short, roomy, sounds, answers(None, asked))
    assert "max_num_seqs" not in asked[0], "half of 30 GiB holds them all"


def test_what_is_too_little_is_not_written() -> None:
    short = rehearsed(kv_cache_tokens=None, problem="one request wants more")
    found = fix_kv_cache(predicted(FOUR, rehearsed()), FOUR, answers(short, []))
    assert found is not None
    assert (found.pool, found.check.status) == (None, "fail")
    assert found.check.detail == "a KV cache of 10.35 GiB is too small: one request wants more"
