"""CONTRIBUTING, "How to add: a fix", done on a copy: `plan` proposes, tries and combines it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .copy_of import copy_of

MODULE = "mmcalib/derive/fixes/dtype.py"
FIX = '''"""Half of the bits for weights and activations."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed


def _dtype(_: Unfixed) -> Iterator[Fix]:
    yield Fix(
        name="dtype",
        knob="dtype",
        changes={"dtype": "bfloat16"},
        cost="quality",
        price="weights and activations in 16 bits, not 32",
    )


def _has_32_bits(unfixed: Unfixed) -> bool:
    return unfixed.engine_args.get("dtype") in ("float32", "float")


RULES = (FixRule(85, _dtype, _has_32_bits),)
'''
TEST = '''"""What plan does with a fix that was added."""

from __future__ import annotations

from test_searching import Wanting, search


def test_it_is_tried_and_proposed_where_it_is_needed() -> None:
    wanting = Wanting("dtype", "bfloat16")
    fixes, found = search(wanting, {"dtype": "float32"})
    assert {"model": "/m", "dtype": "bfloat16"} in wanting.asked
    assert found.alone["dtype"].reached
    assert [(fix.flags, fix.price) for fix in found.best] == [
        ("--dtype bfloat16", "weights and activations in 16 bits, not 32")
    ]
    names = [fix.name for fix in fixes]
    assert names.index("dtype") == names.index("kv_cache_dtype") - 1


def test_it_is_left_out_where_it_changes_nothing() -> None:
    fixes, _ = search(Wanting("kv_cache_dtype", "fp8"), {"dtype": "bfloat16"})
    assert "dtype" not in {fix.name for fix in fixes}
'''


@pytest.mark.slow
def test_a_fix_is_one_file(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    copy.write(MODULE, FIX)
    assert copy.changed() == {MODULE}
    copy.write("tests/workflows/plan/test_added_fix.py", TEST)
    assert copy.run("-m", "ruff", "check", MODULE).returncode == 0
    copy.passes(
        "tests/workflows/plan/test_added_fix.py",
        "tests/workflows/plan/test_searching.py",
        "tests/derive/test_fixes.py",
        "tests/derive/test_media_fixes.py",
        "tests/test_house.py::test_nothing_points_back_up_the_flow",
        "tests/test_house.py::test_what_is_pure_reads_asks_and_knows_nothing",
    )
