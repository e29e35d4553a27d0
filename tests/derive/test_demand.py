from __future__ import annotations

from dataclasses import replace

import pytest

from mmcalib.derive.demand import (
    LanguageStep,
    Merge,
    PromptsStep,
    Resident,
    Shortfall,
    WorstStep,
    worst_step,
)
from mmcalib.releases.constants import CONTEXT_BYTES, VLLM_SLACK_BYTES


@pytest.mark.parametrize(
    ("worst", "outside", "passes", "fits_outside"),
    [
        (1000, 1 << 30, True, True),
        (1000 + VLLM_SLACK_BYTES, 1 << 30, True, True),
        (1001 + VLLM_SLACK_BYTES, 1 << 30, False, True),
        (1007, CONTEXT_BYTES + 7, True, True),
        (1008, CONTEXT_BYTES + 7, False, True),
        (1000, 0, True, True),
        (1001, 0, False, False),
    ],
)
def test_bytes_decide_with_the_slack_that_is_left_beside_the_cuda_context(
    worst: int, outside: int, passes: bool, fits_outside: bool
) -> None:
    found = Shortfall(1000, WorstStep("image", 16_384, worst), outside_bytes=outside)
    assert (found.passes, found.fits_outside) == (passes, fits_outside)
    assert found.is_tight == (outside < 1 << 30)
    assert found.nbytes == worst - 1000
    roomy = replace(found, reserved_bytes=1000 + worst + VLLM_SLACK_BYTES)
    assert (roomy.passes, roomy.is_tight) == (True, False)


def test_a_shortfall_beyond_the_margin_is_out_of_memory() -> None:
    found = Shortfall(
        0,
        WorstStep("video", 1, 3 * VLLM_SLACK_BYTES),
        outside_bytes=2 * VLLM_SLACK_BYTES,
    )
    assert not found.fits_outside


def test_a_step_of_whole_items_is_scaled_to_a_full_one_and_never_down() -> None:
    assert worst_step("image", 600, 6 * 1280, 8192) == WorstStep("image", 8192, 640)
    assert worst_step("image", 600, 8192, 4096).peak_bytes == 600
    assert worst_step("image", 600, 0, 4096).peak_bytes == 600


def test_what_stays_resident_is_part_of_every_demand() -> None:
    """Finding §3 of the server conformance work: entries of finished requests stay."""
    held = Resident(15_088, 32_768)
    assert held.nbytes == 494_403_584
    for demand in (
        WorstStep("image", 1296, 1000, held),
        LanguageStep(8192, 1000, held),
        PromptsStep(8192, 1000, held, prompts=4, alone_bytes=900),
        Merge(8192, 1000, held),
    ):
        assert demand.nbytes == 1000 + held.nbytes
        assert not Shortfall(1000, demand, 0).passes
