"""What a run says at its start of how long it will take."""

from __future__ import annotations

import pytest

from mmcalib.gpus.catalogue import find
from mmcalib.workflows.calibration.ahead import ahead
from mmcalib.workflows.spec import Job


@pytest.mark.parametrize(
    ("validate", "gpu", "opening_s", "says"),
    [
        ("none", None, 2.0, "about 10 s to go"),
        ("budget", None, 10.0, "about 20 s to go"),
        ("startup", None, 10.0, "about 1 min to go"),
        ("replay", "L4", 10.0, "about 2 min to go"),
        ("replay", "L4", 60.0, "about 14 min to go"),
    ],
)
def test_it_goes_by_what_opening_took_and_what_is_proven(
    validate: str, gpu: str | None, opening_s: float, says: str
) -> None:
    job = Job(model="m", data=["d"], validate=validate, gpu=gpu and find(gpu))  # type: ignore[arg-type]
    assert ahead(job, opening_s).startswith(says)
    assert ahead(job, opening_s).endswith(f"opening took {opening_s:.0f} s")


def test_it_does_not_go_by_an_answer_of_an_earlier_run() -> None:
    assert ahead(Job(model="m", data=["d"]), 0.05) == ""
