from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from mmcalib.report.markdown import markdown
from tests.report.example import SERVE, calibration
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named

FENCE = re.compile(r"^ {0,3}```")
BORDER = re.compile(r"(?<!\\)(?:\\\\)*\|")


def test_golden() -> None:
    check_golden("report.md", markdown(calibration(), SERVE))


def outside_fences(text: str) -> Iterator[str]:
    fenced = False
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield line
    assert not fenced


def tables(text: str) -> Iterator[list[int]]:
    """Per table its rows' numbers of borders."""
    rows: list[int] = []
    for line in [*outside_fences(text), ""]:
        if line.startswith("|"):
            rows.append(len(BORDER.findall(line)))
        elif rows:
            yield rows
            rows = []


def test_there_are_six_tables() -> None:
    assert len(list(tables(markdown(calibration(), SERVE)))) == 6


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_keep_the_tables_whole(name: str) -> None:
    text = markdown(named(name), SERVE)
    found = list(tables(text))
    assert len(found) == 6
    assert all(len(set(rows)) == 1 for rows in found)
    assert [len(rows) for rows in found][-1] == 2 + len(named(name).checks)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_stay_text(name: str) -> None:
    text = markdown(named(name), f"vllm serve --config {name}")
    text.encode("utf-8", errors="strict")
    assert len([line for line in text.split("\n") if FENCE.match(line)]) == 4
    for line in outside_fences(text):
        assert all(char.isprintable() for char in line)
        without_code = re.sub(r"`[^`\\]*`", "", line)
        assert not re.search(r"(?<!\\)<[a-z/]", without_code)
        assert not re.search(r"(?<!\\)[\[$~&]", without_code)


def test_a_failed_verdict_says_that_nothing_was_emitted() -> None:
    text = markdown(calibration().model_copy(update={"verdict": "fail"}), SERVE)
    assert "Serve with\n" not in text
    assert "No configuration was emitted" in text
    assert "Not emitted, because the verdict is fail:" in text


def test_without_engine_start_frontier_or_requests_it_still_says_so() -> None:
    found = calibration()
    bare = found.model_copy(update={"startup": None, "frontier": []})
    text = markdown(bare, SERVE)
    assert "No engine was started." in text
    assert "no option that changes what these items cost" in text


def test_a_knob_that_bleeds_and_figures_that_are_missing_are_said() -> None:
    found = calibration()
    point = found.frontier[0].model_copy(
        update={"knob": "max_pixels", "bleeds": ["video"], "adequacy": None, "process_s": None}
    )
    text = markdown(found.model_copy(update={"frontier": [point, *found.frontier]}), SERVE)
    assert "`max_pixels` also changes video items" in text
    assert "`images_kwargs.size.longest_edge` also changes" not in text
    row = next(line for line in text.splitlines() if line.startswith("| `max_pixels`"))
    assert row.count("| — |") >= 1
