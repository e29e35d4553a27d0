"""Another installation of vLLM, by the interpreter that has it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mmcalib.engine.wheels import BUILDS
from mmcalib.errors import UsageError
from mmcalib.processes.environment import safe_environment

# What the child imports beside vLLM and torch. PyAV comes with `vllm[audio]` only.
_NEEDED: Final = ("vllm", "torch", "pydantic", "numpy", "PIL", "cv2", "psutil", "yaml", "av")
_OF_PIP: Final = {"PIL": "pillow", "cv2": "opencv-python-headless", "yaml": "pyyaml"}
# As `requires-python` of pyproject.toml says.
_LEAST_PYTHON: Final = (3, 11)
_PATIENCE_S: Final = 60.0
_HINT: Final = "--python names the interpreter of an environment with vLLM, as /path/to/bin/python"

# Nothing is imported of what is looked for. Run with -I, which Pythons before 3.11 have, too.
_PROBE: Final = """
import importlib.metadata, importlib.util, json, sys
builds, needed = json.loads(sys.argv[1])
version = ""
for build in builds:
    try:
        version = version or importlib.metadata.version(build)
    except importlib.metadata.PackageNotFoundError:
        pass
missing = [name for name in needed if importlib.util.find_spec(name) is None]
print(json.dumps({"python": sys.version_info[:2], "vllm": version, "missing": missing}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`path` is absolute, links kept, as an environment is known by them; `named` as it was given,
    without what every environment has in it.
    """

    path: str
    named: str
    vllm: str


def interpreter(given: str | os.PathLike[str]) -> Interpreter:
    """That of an environment, or of its folder. Raises UsageError where it is none, or lacks what
    mmcalib's child process needs there.
    """
    path = _executable(Path(given))
    version, vllm, lacking = _asked(path)
    if tuple(version) < _LEAST_PYTHON:
        has = ".".join(map(str, version))
        raise UsageError(f"{given} is Python {has}: mmcalib needs 3.11 or later", hint=_HINT)
    missing = [_OF_PIP.get(name, name) for name in lacking]
    if "vllm" in missing or not vllm:
        raise UsageError(f"{given} has no vLLM", hint=_HINT)
    if missing:
        raise UsageError(
            f"{given} lacks what mmcalib needs beside vLLM: {', '.join(missing)}",
            hint=f"{path} -m pip install {' '.join(missing)}",
        )
    return Interpreter(str(path), _short(str(given)), vllm)


def _executable(given: Path) -> Path:
    path = Path(os.path.abspath(given.expanduser()))
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        raise UsageError(f"--python {given}: no such interpreter", hint=_HINT)
    return path


def _asked(path: Path) -> tuple[list[int], str, list[str]]:
    """Python's version, vLLM's or nothing, and the modules that are missing."""
    question = json.dumps([BUILDS, _NEEDED])
    try:
        done = subprocess.run(
            [str(path), "-I", "-c", _PROBE, question],
            stdin=subprocess.DEVNULL,
            env=safe_environment(os.environ, ()),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        return found["python"], found["vllm"], found["missing"]
    except (OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired):
        raise UsageError(f"--python {path}: that is no Python", hint=_HINT) from None


def _short(given: str) -> str:
    folder, _, name = given.rpartition("/bin/")
    return folder if folder and name.startswith("python") else given
