"""A real run whose corpus lies in a folder that no redacted output may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcalib.admission.calibration import Calibration
from mmcalib.report import CONFIGURATION_NAMES, REPORT_NAMES
from mmcalib.results.part import CheckResult
from tests.e2e.command import QWEN, mmcalib
from tests.e2e.media import photo, requests

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SECRET = "UNDISCLOSED"


def test_no_output_of_a_redacted_run_names_the_folder(tmp_path: Path, engine_cache: Path) -> None:
    media, out = tmp_path / SECRET / f"of {SECRET}", tmp_path / "out"
    for number, width in enumerate((640, 9000)):
        photo(media / f"{SECRET}-{number}.jpg", width, 1600, number)
    photo(media / f"{SECRET}-thin.png", 3, 700)
    (media / f"{SECRET}-broken.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    images = [("image", f"{SECRET}-{number}.jpg") for number in (0, 1)]
    asked = requests(media / f"{SECRET}.jsonl", images, images * 9, [("image", f"{SECRET}.gif")])
    words = ("run", "--model", QWEN, "--data", media, "--requests", asked, "--out", out)
    done = mmcalib(engine_cache, *words, "--validate", "budget", "--redact-paths", "--quiet")
    assert done.returncode in (0, 3), done.stderr
    written = {name: (out / name).read_text("utf-8") for name in ("report.html", "report.md")}
    again = ("report", out, "--redact-paths", "--no-thumbnails", "--force", "--quiet")
    for name in REPORT_NAMES:
        written[name] = mmcalib(engine_cache, *again, "--format", name, "--out", "-").stdout
    for name in CONFIGURATION_NAMES:
        written[f"--emit {name}"] = mmcalib(engine_cache, *again, "--emit", name).stdout
    assert [name for name, text in written.items() if not text] == []
    assert [name for name, text in written.items() if SECRET in text] == []
    # Checks name files, or this could not fail; each says which.
    checks = Calibration.load(out / "calibration.json").checks
    assert sum(map(is_named, checks)) >= 3
    assert [check.name for check in checks if is_named(check) and not check.names] == []


def is_named(check: CheckResult) -> bool:
    return SECRET in check.detail
