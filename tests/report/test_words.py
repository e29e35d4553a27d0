from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib import wording
from mmcalib.report import words
from mmcalib.result.evidence import grouped
from tests.report.example import calibration


def test_one_of_something_is_not_several() -> None:
    said = [wording.several(count, "request") for count in (0, 1, 1204)]
    assert said == ["0 requests", "1 request", "1,204 requests"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0%"),
        (0.0004, "<0.1%"),
        (0.001, "0.1%"),
        (0.25, "25.0%"),
        (0.9996, ">99.9%"),
        (1.0, "100%"),
    ],
)
def test_a_share_never_reads_as_nothing_or_all_unless_it_is(value: float, text: str) -> None:
    assert wording.share(value) == text


@given(st.floats(0, 1))
def test_only_nothing_is_0_and_only_all_is_100(value: float) -> None:
    assert (wording.share(value) in ("0%", "0.0%")) == (value == 0)
    assert (wording.share(value) in ("100%", "100.0%")) == (value == 1)


def test_numbers_have_separators_and_absence_a_dash() -> None:
    assert (wording.number(114688), wording.number(None)) == ("114,688", "—")
    assert (wording.gib(970827468), wording.gib(None), wording.gib(0)) == (
        "0.90 GiB",
        "—",
        "0.00 GiB",
    )


@given(st.text())
def test_plain_text_is_printable_and_leaves_good_text_alone(text: str) -> None:
    plain = wording.plain(text)
    assert all(char.isprintable() for char in plain)
    assert wording.plain(plain) == plain


def test_neighbours_with_one_reason_are_said_once() -> None:
    groups = grouped(calibration().limits.evidence)
    assert [settings for settings, _, _ in groups][:2] == [
        ["limit_mm_per_prompt.image.count"],
        ["limit_mm_per_prompt.image.width", "limit_mm_per_prompt.image.height"],
    ]
    assert groups[1][1] == ["1316", "756"]
    assert sum(len(settings) for settings, _, _ in groups) == len(calibration().limits.evidence)


def test_reserved_rows_have_a_number_for_every_modality() -> None:
    rows = {what: (before, after) for what, before, after, _ in words.rows(calibration())}
    assert rows["largest video, tokens"] == ("114,688", "1,020")
    assert rows["encoder budget, tokens"] == ("114,688", "2,538")
    assert rows["activation peak"] == ("—", "0.90 GiB")
