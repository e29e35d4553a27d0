"""Served requests on the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mmcalib.report.traffic_terminal import served
from mmcalib.report.traffic_words import choice_rows, traffic_line
from mmcalib.result.traffic import ServedChoice, ServedTraffic, TrafficFigures
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


def test_what_other_choices_change() -> None:
    now = figures()
    choices = [
        ServedChoice(
            option="max_num_batched_tokens", value=1024, steps=3, encoder_waits=0
        ).model_copy(update={"peak_bytes": MIB, "margin_bytes": MIB, "status": "pass"}),
        ServedChoice(option="max_num_seqs", value=512, steps=2, encoder_waits=2).model_copy(
            update={"peak_bytes": 9 * GIB, "margin_bytes": -GIB}
        ),
        ServedChoice(option="max_pixels", value=1 << 24, problem="would not start: no room"),
    ]
    shown = ServedTraffic(gpu="L4", calibrated=now, default=None, choices=choices, assumptions=[])
    first, fewer, more, gone = choice_rows(shown)
    assert first[:4] == ("as calibrated", "2", "1", "1")
    assert fewer[0] == "max_num_batched_tokens 1,024"
    assert fewer[-1] == "50% more steps, nothing waits for the encoder"
    assert more[-1] == "out of memory"
    assert gone == ("max_pixels 16,777,216", "", "", "", "", "", "would not start: no room")
