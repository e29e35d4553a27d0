"""Whose processor seconds are kept: those of real files, after a first that is not counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from corpora import corpus, path_of
from fake_host import FakeHost, opened

from mmcalib.census.sample import choose
from mmcalib.census.shapes import ImageShape, VideoShape
from mmcalib.engine.messages import File, Measure, Measured
from mmcalib.engine.setting import DEFAULT
from mmcalib.job.decision.measure import measure
from mmcalib.progress import Silent

PAGE, STAMP, CLIP = ImageShape(800, 600), ImageShape(60, 50), VideoShape(50, 25.0, 2.0, 320, 180)


class Timed(FakeHost):
    """The n-th subject of a request takes n seconds."""

    def __init__(self) -> None:
        super().__init__(opened(), {path_of(shape): shape for shape in (PAGE, STAMP, CLIP)})
        self.files: list[str] = []

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        self.files += [one.path for one in request.subjects if isinstance(one, File)]
        for place, answer in enumerate(super().measure(request, doing), 1):
            assert answer.cost is not None
            yield replace(answer, cost=replace(answer.cost, cpu_s=float(place)))


def test_the_lightest_of_each_modality_is_loaded_once_before_the_others_are_timed() -> None:
    host, read = Timed(), corpus([PAGE, STAMP, CLIP])
    sample = choose(read.census, 12, 0)
    table, _ = measure(host, read.census, DEFAULT, sample, Silent())  # type: ignore[arg-type]
    assert host.files == [path_of(STAMP), path_of(CLIP), *(path for _, path in sample)]
    assert {cost.basis for cost in table.costs.values()} == {"real"}
    # Two came before; the sample's own seconds follow, each shape's own.
    assert [table.costs[shape].cpu_s for shape, _ in sample] == [3.0, 4.0, 5.0]


def test_a_stand_in_has_no_processor_seconds() -> None:
    read = corpus([PAGE, STAMP])
    sample = [(PAGE, path_of(PAGE))]
    table, _ = measure(Timed(), read.census, DEFAULT, sample, Silent())  # type: ignore[arg-type]
    assert table.costs[STAMP].basis == "blank"
    assert table.costs[STAMP].cpu_s == 0
    assert table.costs[PAGE].cpu_s > 0
