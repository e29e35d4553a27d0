"""Another environment's interpreter: what its processes may import."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import mmcalib
from mmcalib.engine.environment import child_environment


def test_its_processes_find_this_mmcalib_and_nothing_of_this_path(tmp_path: Path) -> None:
    environment = tmp_path / "bare"
    venv.create(environment, with_pip=False)
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
