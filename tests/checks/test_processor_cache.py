"""A processor cache that does not hold one admissible request."""

from __future__ import annotations

import pytest

from mmcalib.checks.reserve import cache_findings
from mmcalib.derive.processor_cache import CacheFloor

GIB = 2**30
FLOOR = CacheFloor({"image": (3, GIB // 10), "video": (1, GIB // 2)})
HEAVY = CacheFloor({"video": (9, GIB // 2)})


@pytest.mark.parametrize(
    ("args", "floor", "said"),
    [
        ({"mm_processor_cache_gb": 0.3}, FLOOR, "mm_processor_cache_gb 0.3, but"),
        ({}, HEAVY, "vLLM's default of 4 GiB, but"),
        ({"mm_processor_cache_type": "shm", "data_parallel_size": 2}, HEAVY, "vLLM's default"),
    ],
)
def test_a_cache_below_one_request_is_warned_of(
    args: dict[str, object], floor: CacheFloor, said: str
) -> None:
    """Finding §1 of the server conformance work: seen as HTTP 500; vLLM's default has it, too."""
    check = cache_findings(args, floor)
    assert check is not None
    assert (check.name, check.status) == ("processor cache holds a request", "warn")
    assert check.detail.startswith(said)
    assert "_merge_mm_kwargs" in check.detail
    gib = "4.5" if floor is HEAVY else "0.8"
    assert check.remedy.startswith(f"mm-processor-cache-gb: 0, or mm-processor-cache-gb: {gib}")


def test_one_that_holds_any_request_passes_with_its_parts() -> None:
    check = cache_findings({"mm_processor_cache_gb": 0.8}, FLOOR)
    assert check is not None
    assert check.status == "pass"
    assert "3 × image of 107.4 MB + 1 × video of 536.9 MB = 0.80 GiB (computed)" in check.detail


@pytest.mark.parametrize("args", [{"mm_processor_cache_gb": 0}, {"mm_processor_cache_type": "shm"}])
def test_no_cache_and_one_that_keeps_what_is_touched_have_no_finding(
    args: dict[str, object],
) -> None:
    assert cache_findings(args, HEAVY) is None


def test_nothing_is_said_of_nothing() -> None:
    assert cache_findings({}, CacheFloor({})) is None
