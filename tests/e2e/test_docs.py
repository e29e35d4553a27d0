"""Every command of the docs that needs vLLM is run; `tests/docs/commands.py` has the rule."""

from pathlib import Path

import pytest

from tests.docs.commands import PROVES, SLOW, check, commands
from tests.docs.workspace import copy, prepare

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("docs"))


@pytest.mark.parametrize(("page", "line"), SLOW, ids=[line for _, line in SLOW])
def test_command_runs(page: str, line: str, template: Path, tmp_path: Path) -> None:
    copy(template, tmp_path / "w")
    (words,) = commands(line)
    if words[0] in PROVES and "--validate" not in words:
        line = line.replace(f"mmcalib {words[0]}", f"mmcalib {words[0]} --validate budget")
    check(page, line, tmp_path / "w")
