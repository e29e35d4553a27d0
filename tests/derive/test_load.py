"""What serving takes beside what startup reserved."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.demand import Margin, thinned
from mmcalib.domain.traffic import TrafficStep
from mmcalib.releases.constants import VLLM_SLACK_BYTES

MIB = 1 << 20
EMPTY = TrafficStep(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def step(peak_bytes: int) -> TrafficStep:
    return replace(EMPTY, peak_bytes=peak_bytes)


def test_a_step_beyond_the_reserve_may_find_room_outside() -> None:
    beyond = VLLM_SLACK_BYTES + MIB
    assert Margin(100, 100, 0, MIB).within
    assert Margin(VLLM_SLACK_BYTES, 0, 0, MIB).within
    eats = Margin(beyond, 0, MIB, MIB)
    assert (eats.nbytes, eats.within, eats.fits) == (-beyond, False, True)
    assert not Margin(beyond, 0, MIB - 1, MIB).fits


@given(
    peak=st.integers(0, 200 * MIB),
    reserved=st.integers(0, 200 * MIB),
    outside=st.integers(0, 40 * MIB),
    total=st.integers(20 * MIB, 100 * MIB),
)
def test_a_lower_share_leaves_enough(peak: int, reserved: int, outside: int, total: int) -> None:
    """In whole hundredths, and the highest such share that does."""
    found = Margin(peak + VLLM_SLACK_BYTES, reserved, min(outside, total), total)
    share = found.utilization
    if share is None:
        assert found.fits or peak - reserved >= 0.99 * total
        return

    def fits(at: float) -> bool:
        return replace(found, outside_bytes=total - math.floor(at * total)).fits

    assert not found.fits
    assert fits(share)
    assert not fits(share + 0.0101)


@given(st.lists(st.integers(0, 1000), max_size=200), st.integers(1, 50))
def test_a_thinned_timeline_keeps_its_heights(peaks: list[int], most: int) -> None:
    kept = list(thinned([step(peak) for peak in peaks], most))
    assert len(kept) <= most
    assert [number for number, _ in kept] == sorted({number for number, _ in kept})
    assert all(found.peak_bytes == peaks[number] for number, found in kept)
    assert max((found.peak_bytes or 0 for _, found in kept), default=0) == max(peaks, default=0)
