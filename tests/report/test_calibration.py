import json
import os
from pathlib import Path
from typing import Any

import pytest

from mmcalib.admission.calibration import Calibration
from mmcalib.errors import UsageError
from tests.report.example import calibration
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named


def test_golden(tmp_path: Path) -> None:
    calibration().save(tmp_path / "calibration.json")
    check_golden("calibration.json", (tmp_path / "calibration.json").read_text("utf-8"))
    assert Calibration.load(tmp_path) == calibration()


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_of_any_kind_survive_and_the_file_is_utf8(name: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    named(name).save(path)
    json.loads(path.read_bytes().decode("utf-8", errors="strict"))
    assert Calibration.load(path) == named(name)


def document() -> dict[str, Any]:
    return json.loads(calibration().to_json())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[]", "is not a calibration"),
        (b"{}", "created_at: Field required"),
        (json.dumps({**document(), "more": 1}).encode(), "more: "),
        (json.dumps({**document(), "schema_version": 1}).encode(), "its schema_version is 1"),
        (b'{"schema_version": 4}', "written by a newer mmcalib"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": NaN}', "the number NaN is out of range"),
        *((b'{"a": %s}' % odd, "out of range") for odd in (b"-Infinity", b"1e999", b"9" * 5000)),
        ("\ufeff{}".encode(), "not JSON"),
    ],
    ids=lambda one: repr(one[:20]),
)
def test_anything_else_is_a_usage_error_in_one_line(content, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Calibration.load(path)
    assert says in caught.value.message
    assert len(caught.value.message) < 1000
    assert ": :" not in caught.value.message
    assert "\n" not in caught.value.message
    assert "mmcalib run" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, "cannot read") for name in ("none.json", "folder", "/dev/zero")),
        ("pipe", "is not a calibration"),
    ],
)
def test_what_is_no_file_is_a_usage_error(name: str, says: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=says) as caught:
        Calibration.load(tmp_path / name)
    assert caught.value.hint


def test_engine_args_are_the_callers_own() -> None:
    found = calibration()
    args = found.engine_args()
    assert args == found.engine_config
    args["limit_mm_per_prompt"]["image"]["count"] = 99
    args["mm_processor_kwargs"].clear()
    assert found == calibration()


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        calibration().verdict = "fail"
