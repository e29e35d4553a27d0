import re
from collections.abc import Iterator

import pytest
import yaml

from mmcalib.admission.calibration import Calibration
from mmcalib.report.html.redact import redacted
from mmcalib.report.markdown import MOST_LINES, issue, markdown
from mmcalib.results.part import CheckResult
from tests.report.example import SERVE, calibration
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named
from tests.schemas import CALIBRATION

FENCE = re.compile(r"^ {0,3}```")
BORDER = re.compile(r"(?<!\\)(?:\\\\)*\|")


def test_golden() -> None:
    check_golden("report.md", markdown(calibration(), SERVE))


def outside_fences(text: str) -> Iterator[str]:
    fenced = False
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield line
    assert not fenced


def tables(text: str) -> Iterator[list[int]]:
    """Per table its rows' numbers of borders."""
    rows: list[int] = []
    for line in [*outside_fences(text), ""]:
        if line.startswith("|"):
            rows.append(len(BORDER.findall(line)))
        elif rows:
            yield rows
            rows = []


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_stay_text_and_keep_the_tables_whole(name: str) -> None:
    text = markdown(named(name), f"vllm serve --config {name}")
    text.encode("utf-8", errors="strict")
    found = list(tables(text))
    assert len(found) == 7
    assert all(len(set(rows)) == 1 for rows in found)
    assert [len(rows) for rows in found][-1] == 2 + len(named(name).checks)
    assert len([line for line in text.split("\n") if FENCE.match(line)]) == 4
    for line in outside_fences(text):
        assert all(char.isprintable() for char in line)
        without_code = re.sub(r"`[^`\\]*`", "", line)
        assert not re.search(r"(?<!\\)<[a-z/]", without_code)
        assert not re.search(r"(?<!\\)[\[$~&]", without_code)


def test_a_failed_verdict_says_that_nothing_was_emitted() -> None:
    text = markdown(calibration(verdict="fail"), SERVE)
    assert "Serve with\n" not in text
    assert "No configuration was written" in text
    assert "Not written, because the verdict is fail:" in text


def test_a_knob_that_bleeds_and_figures_that_are_missing_are_said() -> None:
    found = calibration()
    odd = {"knob": "max_pixels", "bleeds": ["video"], "adequacy": None, "process_s": None}
    point = found.frontier[0].model_copy(update=odd)
    text = markdown(calibration(frontier=[point, *found.frontier]), SERVE)
    assert "`max_pixels` also changes video items" in text
    assert "`images_kwargs.size.longest_edge` also changes" not in text
    row = next(line for line in text.splitlines() if line.startswith("| `max_pixels`"))
    assert row.count("| — |") >= 1


def test_golden_issue() -> None:
    check_golden("issue.md", issue(calibration()))


def test_it_has_what_a_maintainer_asks_for() -> None:
    found = Calibration.load(CALIBRATION)
    text = issue(found)
    named = (found.model.id, found.tool["vllm"])
    for said in (*named, "L4", "Verdict: pass", "KV cache on L4, tokens"):
        assert said.replace("_", "\\_") in text
    block = text.partition("```yaml\n")[2].partition("```")[0]
    assert block.startswith("# vllm serve --config engine.yaml\n")
    config = {name.replace("_", "-"): value for name, value in found.engine_config.items()}
    assert yaml.safe_load(block) == config
    assert "blue-marble" not in text


def test_it_is_short_however_much_is_wrong() -> None:
    bad = [CheckResult(name=f"check {n}", status="warn", detail="x " * 400) for n in range(60)]
    bad.append(CheckResult(name="the worst", status="fail", detail="it does not start"))
    config = {f"setting_{n}": n for n in range(60)}
    text = issue(calibration(checks=bad, engine_config=config))
    assert len(text.splitlines()) == MOST_LINES
    assert "FAIL the worst" in text
    assert max(map(len, text.splitlines())) < 300
    assert text.splitlines()[-1].endswith("more")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_stay_text_in_an_issue(name: str) -> None:
    text = issue(named(name))
    text.encode("utf-8", errors="strict")
    assert sum(line.startswith("```") for line in text.splitlines()) == 2
    assert len(text.splitlines()) <= MOST_LINES


def test_it_is_the_same_of_a_calibration_without_names() -> None:
    found = Calibration.load(CALIBRATION)
    assert issue(redacted(found)[0]) == issue(found)
