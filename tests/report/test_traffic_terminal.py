"""Served requests on the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mmcalib.report.terminal_memory import served, traffic_line
from mmcalib.results.memory import TrafficFigures
from tests.report.golden import check_golden
from tests.report.serving import figures
from tests.workflows.rehearsals import GIB

MIB = 1 << 20


def test_golden() -> None:
    page = io.StringIO()
    served(figures(), "L4", Console(file=page, width=90, color_system=None, highlight=False))
    text = "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"
    check_golden("traffic.txt", text)


@pytest.mark.parametrize(
    ("peak_bytes", "outside_bytes", "status", "said"),
    [
        (GIB, 0, "pass", "0.00 GiB are never used"),
        (GIB + MIB, 0, "pass", "within vLLM's own slack"),
        (3 * GIB // 2, GIB, "warn", "0.50 GiB more than startup reserved: it finds room"),
        (2 * GIB, GIB // 4, "fail", "out of memory"),
    ],
)
def test_the_verdict(peak_bytes: int, outside_bytes: int, status: str, said: str) -> None:
    found = figures(peak_bytes, outside_bytes)
    assert found.status == status
    assert said in traffic_line(found)


def test_it_survives_json() -> None:
    found = figures()
    assert TrafficFigures.model_validate_json(found.model_dump_json()) == found
    assert [point.step for point in found.timeline] == [0, 1]
    assert (found.preemptions, found.encoder_waits, found.served) == (1, 1, 2)
