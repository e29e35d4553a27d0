"""A KV cache of so many bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.demand import fixed_pool
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from tests.workflows.rehearsals import rehearsed

MIB = 1 << 20


@given(st.integers(200 * MIB, 1 << 40))
def test_it_is_what_is_left_less_the_slack_in_whole_mib(left: int) -> None:
    pool = fixed_pool(rehearsed(kv_cache_bytes=left))
    assert pool is not None
    assert pool.kv_cache_memory_bytes % MIB == 0
    assert 0 <= left - VLLM_SLACK_BYTES - pool.kv_cache_memory_bytes < MIB


@pytest.mark.parametrize(
    "changes", [{"kv_cache_tokens": None}, {"kv_cache_bytes": VLLM_SLACK_BYTES + MIB - 1}]
)
def test_where_nothing_is_left_there_is_none(changes: dict[str, int | None]) -> None:
    assert fixed_pool(rehearsed(**changes)) is None
