"""Pools between rehearsals, and how far off they may be."""

from __future__ import annotations

from dataclasses import replace

from mmcalib.derive.pool_curve import KvPool, PoolCurve, kind, profiled_tokens
from mmcalib.domain.rehearsed import PhasePeak, Rehearsed
from tests.workflows.rehearsals import BUDGET, rehearsed

MIB = 1 << 20
LATER = 500 * MIB
LEFT = 12_000 * MIB


def one(tokens: int, kept: int = 0) -> tuple[int, Rehearsed]:
    """An encoder that takes 0.125 MiB a token; the language model's peak hides a small one."""
    encoder = tokens * MIB // 8
    peak = max(encoder, LATER)
    phases = (PhasePeak("encoder", encoder, 0, "", ()), PhasePeak("sampler", LATER, 0, "", ()))
    pool = LEFT - kept - peak
    return tokens, rehearsed(activation_peak_bytes=peak, phases=phases, kv_cache_bytes=pool)


def test_between_two_it_is_in_proportion_and_a_rehearsal_is_itself() -> None:
    curve = PoolCurve.of([one(16_000), one(8_000), one(32_000)])
    assert curve.at(8_000) == KvPool(LEFT - 1_000 * MIB)
    assert curve.at(20_000) == KvPool(LEFT - 2_500 * MIB)


def test_the_highest_phase_decides_on_both_sides_of_where_they_cross() -> None:
    curve = PoolCurve.of([one(0), one(16_000), one(32_000)])
    assert curve.at(2_000) == KvPool(LEFT - LATER)
    assert curve.at(8_000) == KvPool(LEFT - 1_000 * MIB)


def test_what_one_differs_from_its_neighbours_is_how_far_off_it_may_be() -> None:
    curve = PoolCurve.of([one(8_000), one(16_000, kept=20 * MIB), one(32_000)])
    found = curve.at(20_000)
    assert found is not None
    assert found.off_bytes == 2 * 20 * MIB


def test_nothing_is_said_beyond_what_was_rehearsed_or_of_two_alone() -> None:
    curve = PoolCurve.of([one(8_000), one(16_000), one(32_000)])
    assert curve.at(7_999) is None
    assert curve.at(32_001) is None
    assert PoolCurve.of([one(8_000), one(32_000)]).at(16_000) is None
    assert PoolCurve.of([]).at(16_000) is None


def test_what_is_profiled_is_all_its_items() -> None:
    two = replace(BUDGET, profiled_items=2)
    assert profiled_tokens(two) == 2 * profiled_tokens(BUDGET)
    assert kind(two) == kind(BUDGET) != kind(replace(BUDGET, max_num_seqs=8))
    assert profiled_tokens(replace(BUDGET, profiled_modality=None, profiled_items=0)) == 0
