"""What serving takes beside what startup reserved."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.load import Margin, thinned
from mmcalib.domain.traffic import TrafficStep
from mmcalib.releases.constants import VLLM_SLACK_BYTES

MIB = 1 << 20
EMPTY = TrafficStep(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def step(peak_bytes: int) -> TrafficStep:
    return replace(EMPTY, peak_bytes=peak_bytes)


def test_a_step_beyond_the_reserve_may_find_room_outside() -> None:
    beyond = VLLM_SLACK_BYTES + MIB
    assert Margin(100, 100, 0).within
    assert Margin(VLLM_SLACK_BYTES, 0, 0).within
    eats = Margin(beyond, 0, MIB)
    assert (eats.nbytes, eats.within, eats.fits) == (-beyond, False, True)
    assert not Margin(beyond, 0, MIB - 1).fits


@given(st.lists(st.integers(0, 1000), max_size=200), st.integers(1, 50))
def test_a_thinned_timeline_keeps_its_heights(peaks: list[int], most: int) -> None:
    kept = list(thinned([step(peak) for peak in peaks], most))
    assert len(kept) <= most
    assert [number for number, _ in kept] == sorted({number for number, _ in kept})
    assert all(found.peak_bytes == peaks[number] for number, found in kept)
    assert max((found.peak_bytes or 0 for _, found in kept), default=0) == max(peaks, default=0)
