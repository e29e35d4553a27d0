"""Printed JSON against docs/schemas, which `test_docs.py` holds against the code."""

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from mmcalib.report.report import SCHEMA_NAMES, schema
from tests.programs import run_python

from ..schemas import CALIBRATION, ROOT, SCHEMAS, file_of, fits
from .pages import links


def test_each_schema_is_valid_and_linked() -> None:
    for name in SCHEMA_NAMES:
        Draft202012Validator.check_schema(schema(name))
    files = {file_of(name).name for name in SCHEMA_NAMES}
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


def mmcalib(folder: Path, *words: str, code: int | None = 0) -> str:
    """Return the command's stdout; `code` None: its answer depends on the machine."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "MMCALIB_CACHE_DIR": str(folder / "cache"),
        "NO_COLOR": "1",
    }
    done = run_python("-m", "mmcalib", *words, cwd=folder, env={**os.environ, **environment})
    assert code in (None, done.returncode), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with media and the scan of it, and what that printed."""
    folder = tmp_path_factory.mktemp("scanned")
    (folder / "media").mkdir()
    Image.new("RGB", (56, 28)).save(folder / "media" / "a.png")
    Image.new("RGB", (9000, 30)).save(folder / "media" / "slim.png")
    return folder, mmcalib(folder, "scan", "--data", "media", "--json")


def test_scan_prints_counts(scanned: tuple[Path, str]) -> None:
    fits("scan", json.loads(scanned[1]))


def test_check_prints_lines_that_fit_each(scanned: tuple[Path, str]) -> None:
    words = ("check", "media", "nothing.png", "--calibration", str(CALIBRATION), "--json")
    (scanned[0] / "nothing.png").write_bytes(b"")
    lines = mmcalib(scanned[0], *words, code=3).splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["item", "item", "summary"]
    for line in lines:
        fits("check", json.loads(line))


@pytest.mark.parametrize("words", [("--format", "md"), ("--emit", "args")])
def test_report_prints_what_it_wrote(words: tuple[str, str], tmp_path: Path) -> None:
    printed = mmcalib(tmp_path, "report", str(CALIBRATION), "--out", "o", *words, "--json")
    fits("report", json.loads(printed))


def test_doctor_prints_its_diagnosis(tmp_path: Path) -> None:
    fits("doctor", json.loads(mmcalib(tmp_path, "doctor", "--json", "--quiet", code=None)))
