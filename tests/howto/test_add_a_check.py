"""CONTRIBUTING, "How to add: a check", done on a copy: one that `run` and `validate` both make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.command import QWEN
from tests.e2e.media import photo

from .copy_of import Copy, copy_of

MODULE = "mmcalib/checks/catalogue/sequences.py"
CHECK = '''"""How many requests run at once."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.facts import CheckFacts
from mmcalib.checks.rule import CheckStage, Rule

AT_ONCE = CheckId("requests at once")


def _at_once(facts: CheckFacts) -> Iterator[Check]:
    """A server of one sequence answers one request after the other."""
    seqs = facts.configuration.budget.max_num_seqs
    remedy = facts.dialect.setting("max_num_seqs", 8)
    if seqs == 1:
        yield Check(AT_ONCE, "warn", "one request runs at a time", remedy)
    else:
        yield Check(AT_ONCE, "pass", f"{facts.dialect.number(seqs)} run")


RULES = (Rule((AT_ONCE,), {CheckStage.DECIDED: 165, CheckStage.WRITTEN: 65}, _at_once),)
'''
LISTED = """
from mmcalib.checks.judge import rules
from mmcalib.checks.rule import CheckStage
for stage in CheckStage:
    print(stage.name, *(i.pattern for rule in rules(stage) for i in rule.ids), sep="; ")
"""


def with_the_check(tmp_path: Path) -> Copy:
    copy = copy_of(tmp_path)
    copy.write(MODULE, CHECK)
    assert copy.changed() == {MODULE}
    return copy


@pytest.mark.slow
def test_a_check_is_one_file(tmp_path: Path) -> None:
    copy = with_the_check(tmp_path)
    decided, written, measured = copy.run("-c", LISTED).stdout.splitlines()
    assert "; adequately reserved; requests at once; {} input reserved" in decided
    assert "; requests at once; adequately reserved" in written
    assert "requests at once" not in measured
    copy.passes("tests/checks", "tests/test_house.py::test_nothing_points_back_up_the_flow")


@pytest.mark.slow
@pytest.mark.engine
def test_run_and_validate_say_it_each_in_its_dialect(
    tmp_path: Path, engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMCALIB_CACHE_DIR", str(engine_cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    copy = with_the_check(tmp_path)
    media, out, config = tmp_path / "media", tmp_path / "out", tmp_path / "c.yaml"
    media.mkdir()
    photo(media / "a.jpg", 640, 480)
    budget = ("--model", QWEN, "--validate", "budget", "--max-num-seqs", "1")
    run = copy.mmcalib("run", *budget, "--data", str(media), "--out", str(out))
    assert "requests at once: one request runs at a time" in run.stderr + run.stdout
    assert "--max-num-seqs 8" in run.stderr + run.stdout
    config.write_text(
        f"model: {QWEN}\nmax-num-seqs: 1\nlimit-mm-per-prompt: {{image: 1, video: 0}}"
    )
    judged = copy.mmcalib("validate", "--config", os.fspath(config), "--validate", "budget")
    assert "requests at once: one request runs at a time" in judged.stderr + judged.stdout
    assert "max-num-seqs: 8" in judged.stderr + judged.stdout
