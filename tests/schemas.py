"""The example run, and documents against the published schemas."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "docs" / "schemas"
EXAMPLE = ROOT / "docs" / "example"
DATA = ROOT / "tests" / "data"
CALIBRATION = EXAMPLE / "calibration.json"


def file_of(name: str) -> Path:
    return SCHEMAS / f"{name}.schema.json"


def fits(name: str, document: str | Any) -> None:
    """Raises where the published schema does not take the document, or its text."""
    found = json.loads(document) if isinstance(document, str) else document
    Draft202012Validator(json.loads(file_of(name).read_text("utf-8"))).validate(found)
