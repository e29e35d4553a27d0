"""Other environments: what is said of one that will not do, and what its processes may import."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import mmcalib
from mmcalib.engine.environment import child_environment
from mmcalib.engine.interpreter import interpreter
from mmcalib.errors import UsageError

# What one must have, empty: only whether it is there is asked before the child starts.
BESIDE = ("torch", "pydantic", "numpy", "PIL", "cv2", "psutil", "yaml", "av")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environments") / "bare"
    venv.create(folder, with_pip=False)
    return folder


def packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def give(environment: Path, names: tuple[str, ...], version: str) -> None:
    for name in names:
        (packages(environment) / f"{name}.py").write_text("")
    metadata = packages(environment) / f"vllm-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def test_what_is_no_interpreter_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such interpreter"):
        interpreter(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no such interpreter"):
        interpreter(tmp_path)
    text = tmp_path / "text"
    text.write_text("no program")
    with pytest.raises(UsageError, match="that is no Python"):
        interpreter(text)
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho yes\n")
    other.chmod(0o755)
    with pytest.raises(UsageError, match="that is no Python"):
        interpreter(other)


def test_one_that_is_too_old_is_said_to_be(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\necho \'{"python": [3, 10], "vllm": "0.28.0", "missing": []}\'\n')
    old.chmod(0o755)
    with pytest.raises(UsageError, match=r"is Python 3\.10: mmcalib needs 3\.11"):
        interpreter(old)


def test_what_is_missing_beside_vllm_is_named_with_its_cure(environment: Path) -> None:
    with pytest.raises(UsageError, match="has no vLLM"):
        interpreter(environment)
    give(environment, ("vllm", *BESIDE[:-1]), "0.33.0")
    with pytest.raises(UsageError, match="lacks what mmcalib needs beside vLLM: av") as raised:
        interpreter(environment)
    assert raised.value.hint is not None
    assert raised.value.hint.endswith("-m pip install av")
    give(environment, BESIDE, "0.33.0")
    found = interpreter(environment / "bin" / "python")
    assert (found.vllm, found.named) == ("0.33.0", str(environment))
    assert interpreter(environment).path == found.path, "the folder names it as well"


def test_its_processes_find_this_mmcalib_and_nothing_of_this_path(
    environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not the json of that environment')")
    base = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere"}
    code = "import json, sys, mmcalib; print(json.dumps([mmcalib.__file__, sys.prefix]))"
    done = subprocess.run(
        [environment / "bin" / "python", "-P", "-c", code],
        env=child_environment(base, offline=True, foreign=True),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert mmcalib.__file__ in done.stdout
    assert str(environment) in done.stdout
    own = child_environment(base, offline=True)
    assert str(tmp_path) in own["PYTHONPATH"], "a child of the same interpreter keeps it"
    assert sys.prefix not in done.stdout
