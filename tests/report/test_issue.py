"""What is pasted into an issue."""

from __future__ import annotations

import pytest
import yaml

from mmcalib.admission.calibration import Calibration
from mmcalib.report.html.redact import redacted
from mmcalib.report.markdown import MOST_LINES, issue
from mmcalib.results.part import CheckResult
from tests.report.example import calibration
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named
from tests.report.test_html_page import DEMO


def test_golden() -> None:
    check_golden("issue.md", issue(calibration()))


def test_it_has_what_a_maintainer_asks_for() -> None:
    found = Calibration.load(DEMO)
    text = issue(found)
    for said in (found.model.id, found.tool.vllm, "L4", "Verdict: pass", "KV cache on L4, tokens"):
        assert said.replace("_", "\\_") in text
    block = text.partition("```yaml\n")[2].partition("```")[0]
    assert block.startswith("# vllm serve --config engine.yaml\n")
    assert yaml.safe_load(block) == {
        name.replace("_", "-"): value for name, value in found.engine_config.items()
    }
    assert "blue-marble" not in text


def test_it_is_short_however_much_is_wrong() -> None:
    bad = [CheckResult(name=f"check {n}", status="warn", detail="x " * 400) for n in range(60)]
    bad.append(CheckResult(name="the worst", status="fail", detail="it does not start"))
    config = {f"setting_{n}": n for n in range(60)}
    text = issue(calibration().model_copy(update={"checks": bad, "engine_config": config}))
    assert len(text.splitlines()) == MOST_LINES
    assert "NO the worst" in text
    assert max(map(len, text.splitlines())) < 300
    assert text.splitlines()[-1].endswith("more")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_stay_text(name: str) -> None:
    text = issue(named(name))
    text.encode("utf-8", errors="strict")
    assert sum(line.startswith("```") for line in text.splitlines()) == 2
    assert len(text.splitlines()) <= MOST_LINES


def test_it_is_the_same_of_a_calibration_without_names() -> None:
    found = Calibration.load(DEMO)
    assert issue(redacted(found)[0]) == issue(found)
