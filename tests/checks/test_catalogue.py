"""The table of checks, its page in the docs, and how a check is looked up."""

from __future__ import annotations

import re

import pytest

from mmcalib.checks.catalogue import CHECKS, check_of_code
from mmcalib.errors import UsageError
from tests.docs.refresh import CHECKS_PAGE, checks_page


def test_each_check_has_a_code_and_a_name_of_its_own() -> None:
    assert len(CHECKS) == len({check.pattern for check in CHECKS.values()})
    assert all(re.fullmatch(r"MM\d{3}", code) for code in CHECKS)


def test_the_page_shows_the_table() -> None:
    page = CHECKS_PAGE.read_text(encoding="utf-8")
    assert page == checks_page(), "python tests/docs/refresh.py"
    assert len(page.split()) <= 1300


def test_an_unknown_code_names_one_that_is_near() -> None:
    assert check_of_code("mm031").name == "… size hint"
    with pytest.raises(UsageError, match="no check has the code MM0311") as raised:
        check_of_code("MM0311")
    assert raised.value.hint == "mmcalib list checks MM031"
