"""Processor seconds are kept of real files alone, and not of the first."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.census.census import choose_sample
from mmcalib.decision.measure import measure
from mmcalib.decision.media_files import Files
from mmcalib.domain.items import Skipped
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import ImageShape, Modality, VideoShape
from mmcalib.engine.messages import File, Measure, Measured
from mmcalib.errors import EngineDied
from mmcalib.progress import Silent
from tests.builders import some
from tests.workflows.corpora import corpus, path_of, pretended
from tests.workflows.fake_host import FakeHost, opened

PAGE, STAMP, CLIP = ImageShape(800, 600), ImageShape(60, 50), VideoShape(50, 25.0, 2.0, 320, 180)


class Timed(FakeHost):
    """The n-th subject of a request takes n seconds."""

    def __init__(self) -> None:
        super().__init__(opened(), {path_of(shape): shape for shape in (PAGE, STAMP, CLIP)})
        self.files: list[str] = []

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        self.files += [one.path for one in request.subjects if isinstance(one, File)]
        for place, answer in enumerate(super().measure(request, doing), 1):
            yield replace(answer, cost=replace(some(answer.cost), cpu_s=float(place)))


def measured(host: Any, *more: ImageShape, files: Files = pretended) -> Any:
    """The table of these shapes' costs, what is skipped, and the sample of files."""
    census = corpus([PAGE, STAMP, CLIP, *more]).census
    sample = choose_sample(census, 12)
    return *measure(host, census, DEFAULT, sample, Silent(), files), sample


def test_the_lightest_of_each_modality_is_loaded_once_before_the_others_are_timed() -> None:
    table, _, sample = measured(host := Timed())
    assert host.files == [path_of(STAMP), path_of(CLIP), *(path for _, path in sample)]
    assert {cost.basis for cost in table.costs.values()} == {"real"}
    # Two came before; the sample's own seconds follow, each shape's own.
    assert [table.costs[shape].cpu_s for shape, _ in sample] == [3.0, 4.0, 5.0]


class Deadly(Timed):
    """Ends at the file `deadly`, and is begun again."""

    deadly, begun = path_of(PAGE), 0

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        for answer, subject in zip(super().measure(request, doing), request.subjects, strict=True):
            if isinstance(subject, File) and subject.path == self.deadly:
                raise EngineDied("the engine process was killed by SIGSEGV")
            yield answer

    def revive(self) -> None:
        self.begun += 1


def test_a_file_that_ends_the_engine_costs_itself() -> None:
    table, skipped, _ = measured(host := Deadly())
    assert host.begun == 1
    (one,) = skipped
    assert one.path == path_of(PAGE)
    assert one.reason == "vLLM cannot load it: the engine process was killed by SIGSEGV"
    assert {shape for shape, cost in table.costs.items() if cost.basis == "real"} == {STAMP, CLIP}


def test_an_engine_that_dies_of_everything_ends_the_job() -> None:
    class Dead(Deadly):
        def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
            if any(isinstance(subject, File) for subject in request.subjects):
                raise EngineDied("the engine process was killed by SIGKILL")
            yield from super().measure(request, doing)

    with pytest.raises(EngineDied):
        measured(Dead(), ImageShape(9, 9), ImageShape(8, 8))


def test_a_file_that_cannot_be_handed_over_is_not_measured() -> None:
    def refused(media: Iterable[tuple[Modality, str]]) -> list[str | Skipped]:
        bad = Skipped(path_of(PAGE), "the decoder took more than 30 s")
        return [bad if path == bad.path else path for _, path in media]

    table, skipped, _ = measured(host := Timed(), files=refused)
    assert path_of(PAGE) not in host.files
    assert [one.reason for one in skipped] == ["the decoder took more than 30 s"]
    assert table.failed == {}
