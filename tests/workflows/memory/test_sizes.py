from __future__ import annotations

import pytest

from mmcalib.checks.check import Check
from mmcalib.derive.encoder_sizes import EncoderBatch, Sized
from mmcalib.domain.encoder_run import EncoderRun
from mmcalib.domain.shapes import ImageShape, Modality
from mmcalib.workflows.memory.sizes import sizes_check
from mmcalib.workflows.proof.sweep import Sweep, Swept


def judged(*points: tuple[int, float], items: int = 1) -> Check | None:
    """Of images of so many tokens, each rehearsed at a share of what was measured."""
    rehearsed: dict[tuple[Modality, EncoderBatch], int] = {}
    swept = []
    for tokens, share in points:
        batch = EncoderBatch(Sized(ImageShape(tokens, 784), tokens), items)
        swept.append(Swept(batch, EncoderRun(tokens, 0, 1000 * tokens, 9000 * tokens, 0.1), 0.1))
        rehearsed["image", batch] = round(10_000 * tokens * share)
    return sizes_check(rehearsed, Sweep({"image": swept}))


def status(*points: tuple[int, float]) -> str:
    found = judged(*points)
    assert found is not None
    return found.status


def test_within_a_tenth_and_not_below_at_the_largest() -> None:
    assert status((64, 0.5), (1000, 0.91), (4000, 1.09), (16_384, 1.0)) == "pass"


@pytest.mark.parametrize("points", [[(1000, 1.11), (2000, 1.0)], [(1000, 0.89), (2000, 1.0)]])
def test_off_by_more_than_a_tenth(points: list[tuple[int, float]]) -> None:
    assert status(*points) == "warn"


def test_the_largest_must_not_take_more_than_rehearsed() -> None:
    assert status((1000, 0.99), (2000, 0.99)) == "warn"


def test_the_largest_counts_however_small() -> None:
    found = judged((64, 0.2), (256, 0.99))
    assert found is not None
    assert (found.status, "256 tokens" in found.detail) == ("warn", True)
    assert "image of 64" not in found.detail


def test_what_was_not_rehearsed_is_not_judged() -> None:
    assert sizes_check({}, Sweep()) is None
