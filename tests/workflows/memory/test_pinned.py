"""`--pin-kv-cache`: what is written, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.errors import UsageError
from mmcalib.workflows.memory.cured import Ask
from mmcalib.workflows.memory.pinned import pinned, pinned_evidence
from mmcalib.workflows.spec import Job
from tests.workflows.memory.test_reserved import FOUR, predicted
from tests.workflows.rehearsals import rehearsed

MIB = 1 << 20


def answers(with_it: Rehearsed | None, asked: list[Mapping[str, Any]]) -> Ask:
    def ask(
        every: Sequence[Mapping[str, Any]], steps: tuple[EncoderStep, ...]
    ) -> list[Rehearsed | None]:
        asked.extend(every)
        return [with_it] * len(every)

    return ask


def test_it_is_rehearsed_as_it_is_written() -> None:
    asked: list[Mapping[str, Any]] = []
    after = rehearsed(capture_sizes=(1, 2))
    found = pinned(predicted(FOUR, after), FOUR, answers(rehearsed(kv_cache_tokens=301_000), asked))
    assert found is not None
    assert found.pool is not None
    assert asked == [found.pool.values]
    assert found.check.status == "pass"
    assert found.check.detail == (
        "KV cache 10.35 GiB of 10.50 GiB that are left, 301,000 tokens, graphs of 2 sizes; vLLM "
        "takes them as they are, and heeds no gpu_memory_utilization"
    )
    size, sizes = pinned_evidence(found.pool, "L4")
    assert (size.setting, size.value) == ("kv_cache_memory_bytes", 10_602 * MIB)
    assert "vLLM ignores gpu_memory_utilization" in size.reason
    assert (sizes.setting, sizes.value) == ("cudagraph_capture_sizes", [1, 2])


def test_what_is_too_little_is_not_written() -> None:
    short = rehearsed(kv_cache_tokens=None, problem="one request wants more")
    found = pinned(predicted(FOUR, rehearsed()), FOUR, answers(short, []))
    assert found is not None
    assert (found.pool, found.check.status) == (None, "fail")
    assert found.check.detail == "10.35 GiB are too little, rehearsed: one request wants more"


def test_where_vllm_would_not_start_another_check_tells() -> None:
    after = rehearsed(kv_cache_tokens=None)
    assert pinned(predicted(FOUR, after), FOUR, answers(None, [])) is None


def test_without_a_gpu_there_is_nothing_to_write() -> None:
    with pytest.raises(UsageError, match="--pin-kv-cache is of a GPU's memory") as caught:
        Job(model="some/model", data=("photos",), pin_kv_cache=True)
    assert caught.value.hint == "--gpu L4"
