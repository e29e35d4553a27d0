"""The way of a shape in how-it-works, held to the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from PIL import Image

from .pages import TEXTS
from .refresh import ROOT

MOST_MODULES = 30
TABLE = TEXTS["docs/how-it-works.md"].partition("<!-- walk -->")[2].partition("\n## ")[0]
FUNCTIONS = re.findall(r"^\| `([\w.]+)` \|", TABLE, re.M)


def module_of(function: str) -> Path:
    """The longest beginning that is a module."""
    parts = function.split(".")
    files = (ROOT / "mmcalib" / Path(*parts[:n]).with_suffix(".py") for n in range(1, len(parts)))
    return [file for file in files if file.is_file()][-1]


def test_it_is_short() -> None:
    modules = {module_of(function) for function in FUNCTIONS}
    assert 20 < len(modules) <= MOST_MODULES
    assert len(FUNCTIONS) == len(set(FUNCTIONS))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_its_functions_exist(function: str) -> None:
    file = module_of(function)
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    within = function.split(".")[len(file.relative_to(ROOT / "mmcalib").parts) :]
    for owner, inner in pairwise([*within, ""]):
        found = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == owner
        ]
        assert found, f"{file.name} has no {owner}"
        assert bool(inner) == isinstance(found[0], ast.ClassDef)
        body = found[0].body


# Runs `mmcalib` and prints the functions of the package that were called in this process.
TRACED = """
import sys
from mmcalib.cli import main
called = set()
def note(frame, event, arg):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("mmcalib."):
        called.add(f"{name.removeprefix('mmcalib.')}.{frame.f_code.co_qualname}")
sys.setprofile(note)
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
finally:
    sys.setprofile(None)
    print(*sorted(called))
"""
# Of the child and of the processes that read media, whose calls are not seen here.
ELSEWHERE = ("child.", "releases.", "media.", "census.executors.worker", "census.executors.answer")


@pytest.mark.engine
@pytest.mark.slow
def test_a_shape_passes_them(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    Image.new("RGB", (640, 480)).save(tmp_path / "data" / "one.png")
    words = ["run", "--model", "Qwen/Qwen2-VL-2B-Instruct", "--data", "data", "--validate", "none"]
    done = subprocess.run(
        [sys.executable, "-c", TRACED, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = {f for f in FUNCTIONS if not f.startswith(ELSEWHERE) and f != "domain.seen.encode"}
    assert len(expected) > 20
    assert expected - set(done.stdout.split()) == set()
    config = yaml.safe_load((tmp_path / "out" / "engine.yaml").read_text())
    # Each edge rounded to the 28 pixels of a token.
    assert config["mm-processor-kwargs"]["images_kwargs"]["size"]["longest_edge"] == 644 * 476
