"""CONTRIBUTING, "How to add: an output format", done on a copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmcalib.cli.choices import either
from mmcalib.report.registry import CONFIGURATIONS

from .copy_of import ROOT, Copy, copy_of

CALIBRATION = str(ROOT / "docs" / "example" / "calibration.json")
SCHEMA = "docs/schemas/report.schema.json"
REPORT = '''"""`report.tsv`: what is reserved, for a spreadsheet."""

from __future__ import annotations

from mmcalib.report import words
from mmcalib.report.report import Report
from mmcalib.report.report_format import ReportFormat


def tsv(report: Report) -> str:
    """A row for each figure."""
    return "".join("\\t".join(row) + "\\n" for row in words.rows(report.shown))


RENDERER = ReportFormat("tsv", tsv)
'''
CONFIGURATION = '''"""The configuration as JSON."""

from __future__ import annotations

import json

from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument


def json_text(calibration: CalibrationDocument) -> str:
    """Names and nesting as vLLM has them."""
    return json.dumps(calibration.engine_args()) + "\\n"


RENDERER = ConfigurationFormat("json", json_text, use="LLM(**json.load({file}))", comments=False)
'''


def completed(copy: Copy, *words: str) -> set[str]:
    """What the shell is offered after these words, as bash asks."""
    ask = (
        "import os, sys; from mmcalib.cli import main; "
        "os.environ |= {'_MMCALIB_COMPLETE': 'complete_bash', 'COMP_WORDS': ' '.join(sys.argv[1:]),"
        " 'COMP_CWORD': str(len(sys.argv) - 2)}; sys.argv = ['mmcalib']; main()"
    )
    return set(copy.run("-c", ask, "mmcalib", *words).stdout.split())


def published(copy: Copy) -> None:
    """The schema written anew, as `MMCALIB_UPDATE_GOLDENS=1` has the test do it."""
    new = (
        "import json; from mmcalib.report.schemas import schema; "
        "print(json.dumps(schema('report'), indent=2, ensure_ascii=False))"
    )
    copy.write(SCHEMA, copy.run("-c", new).stdout)
    copy.passes("tests/docs/test_schemas.py", "-k", "published and report")


@pytest.mark.slow
def test_a_report_for_people_is_one_file(tmp_path: Path) -> None:
    copy, out = copy_of(tmp_path), tmp_path / "report.tsv"
    copy.write("mmcalib/report/pages/tsv.py", REPORT)
    assert copy.changed() == {"mmcalib/report/pages/tsv.py"}
    done = copy.mmcalib(
        "report", CALIBRATION, "--format", "tsv", "--out", str(out), "--json", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["format"] == "tsv"
    assert "encoder budget, tokens\t" in out.read_text()
    assert "html, md or tsv." in copy.mmcalib("report", "--help").stdout
    assert completed(copy, "report", "--format", "") == {"html", "md", "tsv"}
    assert "none of html, md, tsv" in copy.mmcalib("report", "--format", "pdf").stderr
    published(copy)
    copy.passes(
        "tests/cli/test_output.py",
        "tests/cli/test_report.py",
    )


@pytest.mark.slow
def test_a_form_of_the_configuration_is_one_file(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    copy.write("mmcalib/report/emit/json.py", CONFIGURATION)
    assert copy.changed() == {"mmcalib/report/emit/json.py"}
    done = copy.mmcalib("report", CALIBRATION, "--emit", "json")
    assert json.loads(done.stdout)["limit_mm_per_prompt"]
    assert "use, kept as engine.json: LLM(**json.load(engine.json))" in done.stderr
    assert "json" in completed(copy, "report", "--emit", "j")
    assert completed(copy, "run", "--emit", "") == {*CONFIGURATIONS.names[1:], "json"}
    # A line may break behind the dash of a name.
    helped = "".join(copy.mmcalib("report", "--help").stdout.replace("│", " ").split())
    default, *others = CONFIGURATIONS.names
    assert either([default, *sorted([*others, "json"])]).replace(" ", "") in helped
    published(copy)
    copy.passes("tests/security/test_emitted.py", "-k", "json")
