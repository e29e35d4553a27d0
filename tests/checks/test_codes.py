"""The table of checks, and how a check is looked up."""

from __future__ import annotations

import re

import pytest

from mmcalib.checks.catalogue import CHECKS, check_of_code
from mmcalib.errors import UsageError


def test_each_check_has_a_code_and_a_name_of_its_own() -> None:
    assert len(CHECKS) == len({check.pattern for check in CHECKS.values()})
    assert all(re.fullmatch(r"MM\d{3}", code) for code in CHECKS)


def test_an_unknown_code_names_one_that_is_near() -> None:
    assert check_of_code("mm031").name == "… size hint"
    with pytest.raises(UsageError, match="no check has the code MM0311") as raised:
        check_of_code("MM0311")
    assert raised.value.hint == "mmcalib list checks MM031"
