"""Printed JSON against docs/schemas, which `test_docs.py` holds against the code."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from tests.e2e.command import mmcalib

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
    fits("calibration", json.loads((CALIBRATION).read_text("utf-8")))


def test_a_document_with_another_key_does_not_fit() -> None:
    whole = json.loads((CALIBRATION).read_text("utf-8"))
    broken = Draft202012Validator(schema("calibration"))
    assert not broken.is_valid({**whole, "novelty": 1})
    assert not broken.is_valid({key: value for key, value in whole.items() if key != "verdict"})


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with media and the scan of it, and what that printed."""
    folder = tmp_path_factory.mktemp("scanned")
    (folder / "media").mkdir()
    Image.new("RGB", (56, 28)).save(folder / "media" / "a.png")
    Image.new("RGB", (9000, 30)).save(folder / "media" / "slim.png")
    words = ("scan", "--data", folder / "media", "--json")
    return folder, mmcalib(folder / "cache", *words).stdout


def test_scan_prints_counts(scanned: tuple[Path, str]) -> None:
    fits("scan", scanned[1])


def test_check_prints_lines_that_fit_each(scanned: tuple[Path, str]) -> None:
    media, empty = scanned[0] / "media", scanned[0] / "nothing.png"
    empty.write_bytes(b"")
    words = ("check", media, empty, "--calibration", CALIBRATION, "--json")
    lines = mmcalib(scanned[0] / "cache", *words, code=3).stdout.splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["item", "item", "summary"]
    for line in lines:
        fits("check", line)


@pytest.mark.parametrize("words", [("--format", "md"), ("--emit", "args")])
def test_report_prints_what_it_wrote(words: tuple[str, str], tmp_path: Path) -> None:
    to = ("--out", tmp_path / "o")
    fits("report", mmcalib(tmp_path, "report", CALIBRATION, *to, *words, "--json").stdout)


def test_doctor_prints_its_diagnosis(tmp_path: Path) -> None:
    fits("doctor", mmcalib(tmp_path, "doctor", "--json", "--quiet", code=None).stdout)
