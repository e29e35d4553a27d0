"""Programs that tests run, and those that import vLLM and answer in JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mmcalib.engine.environment import child_environment


def run_program(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, and keep its output as text."""
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": False, **options}
    return subprocess.run([*map(str, words)], **how)


def executable(path: Path, script: str) -> str:
    """A program of this text, for whom asks for one by its path."""
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return run_program(sys.executable, *words, **options)


def start_python(*words: object, **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, *map(str, words)], **pipes)


def answer_of(*words: str | Path, asked: object = None, **environment: str) -> Any:
    """Run Python as the engine's child, with JSON to read, and return what its last line says."""
    env = {**child_environment(os.environ), **environment}
    done = run_python(*words, env=env, input=json.dumps(asked))
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
