import json
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
    ],
)
def test_anything_else_is_a_usage_error_in_one_line(content, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Calibration.load(path)
    assert says in caught.value.message
    assert ": :" not in caught.value.message
    assert "\n" not in caught.value.message
    assert "mmcalib run" in caught.value.hint


def test_a_missing_file_and_a_folder_without_one_are_usage_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="cannot read") as caught:
            Calibration.load(path)
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
