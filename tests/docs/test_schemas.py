"""The example against docs/schemas, which `test_docs.py` holds against the code.

What the commands print is held against them in `tests/cli` and `tests/e2e`.
"""

import json

from jsonschema import Draft202012Validator

from ..schemas import CALIBRATION, SCHEMAS, file_of, fits
from .pages import links
from .refresh import DOCUMENTS, schema


def test_each_schema_is_valid_and_linked() -> None:
    for name in DOCUMENTS:
        Draft202012Validator.check_schema(schema(name))
    files = {file_of(name).name for name in DOCUMENTS}
    assert {path.name for path in SCHEMAS.iterdir()} == files
    page = "docs/reference/calibration-json.md"
    assert {f"../schemas/{name}" for name in files} <= set(links(page))


def test_the_example_s_calibration_fits() -> None:
    fits("calibration", CALIBRATION.read_text("utf-8"))


def test_a_document_with_another_key_does_not_fit() -> None:
    whole = json.loads(CALIBRATION.read_text("utf-8"))
    broken = Draft202012Validator(schema("calibration"))
    assert not broken.is_valid({**whole, "novelty": 1})
    assert not broken.is_valid({key: value for key, value in whole.items() if key != "verdict"})
